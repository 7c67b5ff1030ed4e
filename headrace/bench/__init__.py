"""`headrace bench`: load on a server, the engine without a server, and cold starts, measured.

    workload   what is asked: prompts, lengths            load      when it is asked: streams, or arrivals
    client     asks over HTTP, stamps what comes          record    one request, as it was measured
    metrics    records to figures                         report    figures to text and JSON; plot: to a picture

`online`, `offline` and `startup` put these together. Nothing of it is loaded by another command.
"""
