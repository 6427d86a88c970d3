"""Moves the files of a directory to a bucket and back with the libraries that Python programs use for that, at their defaults:

    peers.py boto3|crt|s3torchconnector up|down DIR BUCKET PREFIX

The endpoint, the region and the credentials are those of the environment.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

FILES_AT_ONCE = 8


class Boto3:
    def __init__(self, client):
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        self.s3 = boto3.client("s3", config=Config(s3={"addressing_style": "path"}, max_pool_connections=64))
        self.config = TransferConfig(preferred_transfer_client=client)

    def keys(self, bucket, prefix):
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                yield entry["Key"]

    def up(self, path, bucket, key):
        self.s3.upload_file(path, bucket, key, Config=self.config)

    def down(self, path, bucket, key):
        self.s3.download_file(bucket, key, path, Config=self.config)


class S3TorchConnector:
    """The client below s3torchconnector, as its checkpoint writer and reader use it."""

    def __init__(self):
        from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

        self.client = MountpointS3Client(os.environ["AWS_REGION"], endpoint=os.environ["AWS_ENDPOINT_URL"], force_path_style=True)

    def keys(self, bucket, prefix):
        for page in self.client.list_objects(bucket, prefix):
            for entry in page.object_info:
                yield entry.key

    def up(self, path, bucket, key):
        out = self.client.put_object(bucket, key)
        with open(path, "rb") as f:
            while data := f.read(8 << 20):
                out.write(data)
        out.close()

    def down(self, path, bucket, key):
        with open(path, "wb") as f:
            for data in self.client.get_object(bucket, key):
                f.write(data)


def main():
    name, direction, top, bucket, prefix = sys.argv[1:]
    prefix = prefix.rstrip("/") + "/"
    if name == "s3torchconnector":
        peer = S3TorchConnector()
    else:
        peer = Boto3({"boto3": "classic", "crt": "crt"}[name])
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        work = []
        if direction == "up":
            for folder, _, names in os.walk(top):
                for n in names:
                    path = os.path.join(folder, n)
                    work.append(pool.submit(peer.up, path, bucket, prefix + os.path.relpath(path, top)))
        else:
            for key in peer.keys(bucket, prefix):
                path = os.path.join(top, key[len(prefix) :])
                os.makedirs(os.path.dirname(path), exist_ok=True)
                work.append(pool.submit(peer.down, path, bucket, key))
        for w in work:
            w.result()


main()
