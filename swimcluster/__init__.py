"""Membership for Python services: who else is alive, told by SWIM with Lifeguard."""
