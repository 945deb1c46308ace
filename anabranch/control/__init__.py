"""What was decided and what was committed, on disk. A *ledger* is a folder of numbered records (`control/n`: what
batch n starts from; `commit/n`: which files won it); the highest whole record is the truth, and nothing that no record
names is ever read. The *sweep* removes what nobody names. This room stores decisions and takes none.
"""
