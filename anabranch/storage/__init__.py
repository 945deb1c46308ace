"""Bytes that outlive a process. Everything the engine and the control loop keep goes through a `Filesystem` of a few
small operations, either as a sealed *record* (one JSON document that people can read, whole or refused) or as a segment
of a *container* (many binary arrays in one file, memory-mapped and never copied). Files are written once, under names
nobody else uses, and are trusted only after their checksum: what a crash leaves behind is told apart from what was
finished, and what is finished never changes. This room knows nothing of rows, plans or batches.
"""
