"""An Inspect task: eight samples and a scorer."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes


@task
def digits():
    samples = [Sample(id=str(one), input=f"Write the digit {one}", target=str(one)) for one in range(8)]
    return Task(dataset=samples, scorer=includes())
