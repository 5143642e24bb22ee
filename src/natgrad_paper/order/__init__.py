"""Figure 2: how much a trained model depends on single parts of the stream it was trained on.

`config` has the numbers, `courses` what a training sees, `learner` the network and its compiled training, `matching`
the search for rates, `protocol` the trainings and their order, `journal` what is kept of them; `numbers`, `claims`,
`figures` and `page` make the report from the logs.
"""
