"""Does a user's problem fit its clients? One finding per question, each with a figure; nothing is trained.

structure    the problem's functions fit together; the client's batches have the shapes and dtypes it states
draws        two deployments of one model do not bring in the very same numbers
losses       finite where the run will go
gradient     automatic differentiation against central differences of the mean loss, in double precision
projection   onto the model space, twice is once
data         counts, yes and no, or choices that another family is made for
family       f_hat maximises the likelihood: the mean score is zero in every direction that f_hat can move
noise        the variance that the family states for f_hat, against the bootstrap
reaction     f_hat at theta + delta against theta - delta, in units of its sampling noise
clients      does the same step move f_hat up at one client and down at another?
memory       theta + delta is held, then theta - delta, then the first again: does f_hat still move while one is held?
drift        does it move with time, whatever is deployed?
spread       does the spread of the data differ between the two, where the family takes it for fixed?
junk         the share of samples that the robust filter would drop, with a histogram of the coordinate in which they
             lie farthest from the others
"""

from profl.run.diagnostics.drift_diagnostics import HOLD
from profl.run.diagnostics.questions import check
from profl.run.diagnostics.subject import CheckStopped, Finding

__all__ = ["HOLD", "CheckStopped", "Finding", "check"]
