"""The learner's questions, answered by measuring: `vit study NAME`. Light: a study's module is imported when it is run."""

from __future__ import annotations

STUDIES = {
    "embedding-or-not": "Are W_Q and W_K the embedding?",
    "who-trains-them": "Who trains W_Q, W_K, W_V and the embedding?",
    "fixed-or-learned": "What is lost when a part does not learn, or is not there?",
    "static-and-contextual": "How much of a token is its own patch, its position, its context?",
    "tyres-and-roads": "Are patches that occur together more similar?",
    "is-it-similarity": "Does q . k measure similarity?",
    "identity-case": "What is attention when W_Q, W_K and W_V are the identity?",
    "attention-or-cause": "Are strongly attended patches and heads the ones that matter?",
    "one-hot": "Is an embedding table a linear map, and a patch embedding a table?",
}
"""Each study and its question. Each is a module here, of the same name with underscores, with a function `study`."""
