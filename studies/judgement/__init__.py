"""How often the judgement of workers alarms when all is well, and how soon and how rightly when it is not."""
