// Package cdkblob keeps objects in Google Cloud Storage (gs://) and in Azure
// Blob Storage (azblob://). They are drivers of package blob, on what these
// clouds themselves provide: Google's library for credentials and its
// documented HTTP API, and Microsoft's SDK. The URLs are those of gocloud.dev,
// the Go Cloud Development Kit, but keys are stored as they are, without its
// escaping, and no writer publishes what its source could not finish.
//
// # Integrity
//
// Every request that carries an object's bytes carries their checksum, so that
// the store refuses what changed on the way: CRC32C for GCS, and for Azure
// CRC64 (or Content-MD5 where a server cannot do that), taken in the same pass
// over the bytes that checks the caller's CRC32C. What the store says that it
// has got is compared once more.
//
// # Uploads in parts
//
// On GCS they are multipart uploads of the XML API: parts are no objects, so
// that no listing shows them, no retention or soft-delete policy keeps them,
// and nothing has to be composed or deleted afterwards. On Azure they are
// blocks of the blob itself. Their ids tell the upload, the part, which sending
// of it, and its CRC32C; so the store's list of uncommitted blocks is all that
// is needed to go on in another process. All blocks of one blob that are not
// committed are dropped when anything is committed there: of several uploads
// of one key, or an upload and a Put, only the first to end succeeds. Azure
// drops uncommitted blocks by itself after a week.
//
// # Retries
//
// There are none in here: package retryblob is the only place that tries
// again. A request on which no byte moves for Options.Stall fails as
// blob.ErrTemporary.
//
// # Classes of errors
//
// A store says "absent" only if it says that the object is not there. A
// missing bucket or container, or a 404 from something that is no object
// store, is blob.ErrDenied: it must never look like a run without commits.
package cdkblob
