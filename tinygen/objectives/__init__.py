"""Objectives: what a model is trained for, each with its loss and its way of sampling."""
