"""The Apache Kafka connector of Headrace. Read next: `producer`, which puts the parts together, and `lanes`, the bookkeeping."""

from headrace_kafka.config import KafkaConfig
from headrace_kafka.connector import KafkaConnector
from headrace_kafka.producer import KafkaProducer

CONNECTOR = KafkaConnector()

__all__ = ["CONNECTOR", "KafkaConfig", "KafkaConnector", "KafkaProducer"]
