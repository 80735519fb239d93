"""The reaper: puts right what dead workers and passed deadlines have left behind."""
