// Package s3blob keeps objects in Amazon S3 and in the many stores that speak
// its protocol. It is a driver of package blob on aws-sdk-go-v2.
//
// # Integrity
//
// Every request that carries an object's bytes carries their checksum in a
// header, so that the store refuses what changed on the way: CRC32C, or
// Content-MD5 for stores that refuse the former, or nothing for stores that
// refuse both (over plain http the payload is then signed instead). With
// checksum=auto the driver finds out which with the first requests, once per
// handle. Where the store does not confirm that it looked at the checksum, the
// driver compares it itself while it sends, and withholds the last bytes of
// what does not match. Payloads are not signed and never sent in chunks with
// trailers, which many stores refuse. An ETag is never taken for an MD5.
//
// # Small objects
//
// The SDK sends the first object of a handle. Small ones after it go out as that
// request did, with another key, body, checksum and signature: the SDK takes more
// processor time for one than sending it does. After a failure it is the SDK's
// turn again.
//
// # Retries
//
// There are none in here, but for finding out the checksum: package retryblob
// is the only place that tries again. A request on which no byte moves for
// Options.Stall fails as blob.ErrTemporary.
//
// # Classes of errors
//
// A store says "absent" only if it says NoSuchKey. A missing bucket, a 404
// from something that is no object store, or a listing that is none is
// blob.ErrDenied: it must never look like a run without commits. Expired
// credentials are blob.ErrTemporary, and the next request resolves them anew.
package s3blob
