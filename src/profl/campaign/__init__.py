"""Campaigns: runs whose deployments take days. ``profl.Campaign`` is the way in."""

from profl.campaign.campaign import Campaign
from profl.campaign.deployment import Deployment, Deployments
from profl.campaign.events import Event
from profl.campaign.status import Expected, Status
from profl.campaign.telling import Told

__all__ = ["Campaign", "Deployment", "Deployments", "Event", "Expected", "Status", "Told"]
