"""Any history of a stream's bookkeeping keeps the rules: a state machine against a naive model that forgets nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.model.ledger_machine import LedgerMachine

TestLedger = pytest.mark.timeout(600)(LedgerMachine.TestCase)
TestLedger.settings = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.mark.soak
class TestLedgerForLong(LedgerMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings.get_profile("soak")
