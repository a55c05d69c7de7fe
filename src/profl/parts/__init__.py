"""The parts that methods are made of, each one line of the algorithm; ``profl.chain`` puts them in a row.

``part`` has the contract; a part of one's own goes into a chain beside these (``examples/own_part.py``).
"""

from dataclasses import is_dataclass

from profl import checks
from profl.parts.averaging import Averaging
from profl.parts.drift_correction import DriftCorrection
from profl.parts.exploration import Exploration
from profl.parts.filters import FILTERS, PaperFilter, RobustFilter
from profl.parts.filters.filter import SampleFilter
from profl.parts.gradient import PerformativeGradient, PlainGradient
from profl.parts.jacobian.estimated import EstimatedJacobian, ExactJacobian
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.estimators import Differences, LeastSquares
from profl.parts.jacobian.kalman import Kalman
from profl.parts.jacobian.tracking import Tracking
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.optimiser import Optimiser
from profl.parts.parameters import EstimatedParameters
from profl.parts.part import Exchange, Part, Step
from profl.parts.personal import ModelSplit, PersonalModel
from profl.parts.privacy import Privacy
from profl.parts.retraining import Retraining
from profl.parts.sample_size import AdaptiveSamples
from profl.parts.sharing import SharedJacobians
from profl.parts.trusted_samples import TrustedSamples
from profl.parts.units import NaturalUnits

__all__ = [
    "FILTERS",
    "AdaptiveSamples",
    "Averaging",
    "Differences",
    "DriftCorrection",
    "EstimatedJacobian",
    "EstimatedParameters",
    "ExactJacobian",
    "Exchange",
    "Exploration",
    "FoundLearningRate",
    "JacobianEstimator",
    "Kalman",
    "LeastSquares",
    "ModelSplit",
    "NaturalUnits",
    "Optimiser",
    "PaperFilter",
    "Part",
    "PerformativeGradient",
    "PersonalModel",
    "PlainGradient",
    "Privacy",
    "Retraining",
    "RobustFilter",
    "SampleFilter",
    "SharedJacobians",
    "Step",
    "Tracking",
    "TrustedSamples",
]

for _part in list(map(globals().get, __all__)):
    if isinstance(_part, type) and is_dataclass(_part):
        checks.explain_call(_part)
