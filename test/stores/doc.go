// Package stores runs real object stores for tests: versitygw, an S3 server
// over a directory; MinIO, a second one, with a format and faults of its own;
// fake-gcs-server, a Google Cloud Storage in memory; and Azurite, Microsoft's
// own emulator of Azure Blob Storage.
//
// The servers are pinned in Go modules of their own, test/servers and
// test/servers/minio, so that none of their dependencies reaches the product's
// go.mod. A server is built on first use, once, into a cache directory whose
// name carries the version ($CKPTSYNC_CACHE, else ckptsync in
// [os.UserCacheDir]); a file lock keeps concurrent test binaries from building
// it twice. That takes the network and, on a bare machine with two cores, about
// two minutes for each of the two S3 servers. To do it ahead of the tests:
//
//	go run ./test/stores/build
//
// Azurite is an npm package and needs Node.js; its version is pinned in this
// package.
//
// Where a server cannot be had, [Versitygw], [StartMinIO], [FakeGCS] and
// [Azurite] skip the test with one line that says why and how to get it, or, with
// CKPTSYNC_REQUIRE_SERVERS=1 (CI), fail it.
//
// Servers listen on free loopback ports, keep their data in a temporary
// directory, and are ended by their process id when the test ends.
package stores
