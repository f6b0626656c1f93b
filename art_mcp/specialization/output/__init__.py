"""The directory of a specialization: everything is written as it comes, so that a killed run can be continued."""
