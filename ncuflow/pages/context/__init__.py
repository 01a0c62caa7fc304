"""What pages say, whatever form they have: the findings of a run, their lines, and a section per kernel target."""
