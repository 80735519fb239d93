"""Settings with a token, and a client that sends it."""

from prometheus_client.parser import text_string_to_metric_families

TOKEN = "a-token-of-the-tests"


def with_metrics(tasks, **options):
    """Return TASKS with these options of metrics."""
    default = tasks["default"]
    return tasks | {"default": default | {"OPTIONS": default["OPTIONS"] | {"metrics": options}}}


def scrape(client, path="/horsies/metrics"):
    """Return the metric families of a page by name."""
    response = client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 200, response.content
    return families(response.content.decode())


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family, *labels, suffix=""):
    """Return the samples of a family, without its buckets, by the values of these labels."""
    name = family.name + (suffix or ("_total" if family.type == "counter" else ""))
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for sample in family.samples
        if sample.name == name
    }
