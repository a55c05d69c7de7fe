"""Runs in which things go wrong, from one seed each; ``python -m tests.faults WHERE SEED`` runs one again.

A schedule is a list of faults: at a client (it hangs, raises, sends NaN, absurd numbers, nothing, too much, words with
control codes), of the process (killed between rounds, in the middle of one, while a file is written; a full disk), of
the clock, and between server and nodes (messages lost, doubled, reordered, replayed, corrupted; nodes that restart).
``network`` has nodes with a registered key that send a real SuperLink what no node sends.
What happens to the operators and the database of a campaign is in ``campaign``, with what must hold there.
Whatever happens, this must hold:

    space     no model that is not finite or outside its space is deployed, by anybody
    deploy    over ``train``: a client's step is one deployment, of one model, however often it is asked for
    states    a client that is left out keeps its state to the bit; after a crash all states are those of the last file
    end       the run comes to its end, or stops with its reason
    counts    what a run counts as deployed is what its clients were asked to deploy
    hooks     what a callback or ``report`` raises ends nothing, and is an incident
    bits      where faults were only crashes, the trajectory is that of the run without faults, to the bit
"""
