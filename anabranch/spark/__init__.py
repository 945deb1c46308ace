"""The host of the boxes: the engine inside Spark Structured Streaming."""
