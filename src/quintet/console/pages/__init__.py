"""Answers what each page of the console asks: one module a page, through the verbs and the gate of the wire."""
