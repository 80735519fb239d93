from horsies_django import Workflow, WorkflowDefinition

class NightlyImport(WorkflowDefinition[int]):
    @classmethod
    def build_with(cls, *, day: str) -> Workflow[int]: ...
