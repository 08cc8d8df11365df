"""A built module measured point by point, what is doubtful about it, and what mends it."""

from compiler.insight.audit.flags import flagged as flagged
from compiler.insight.audit.flags import worst_point as worst_point
from compiler.insight.audit.measure import Audit as Audit
from compiler.insight.audit.measure import PointAudit as PointAudit
from compiler.insight.audit.measure import measure as measure
from compiler.insight.audit.repairs import BITS as BITS
from compiler.insight.audit.repairs import SAMPLES as SAMPLES
from compiler.insight.audit.repairs import Repair as Repair
from compiler.insight.audit.repairs import Repaired as Repaired
from compiler.insight.audit.repairs import repaired as repaired
