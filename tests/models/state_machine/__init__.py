import pytest

pytest.register_assert_rewrite(
    f"{__name__}.base", f"{__name__}.table", f"{__name__}.workers", f"{__name__}.senders", f"{__name__}.machine"
)
