"""What the tests of metrics share."""

from prometheus_client.parser import text_string_to_metric_families

from jobqueue.metrics import prometheus_text, read_figures


def parsed(text):
    """(name, labels as pairs in order) -> value, as Prometheus' own parser reads the text."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures():
    """The samples of the whole queue, as they are now."""
    return parsed(prometheus_text(read_figures(using="default")))


def of(samples, name, **labels):
    """The value of one sample; None if there is none."""
    return samples.get((name, tuple(sorted(labels.items()))))
