package s3blob

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// answer is what a store said to a request that failed.
type answer struct {
	status  int    // 0: none came
	code    string // of the error document; empty if there was none
	message string
}

// answerOf takes the store's answer out of an SDK error. What a source of
// credentials has answered is none.
func answerOf(err error) answer {
	if _, ok := errors.AsType[*credentialsError](err); ok {
		return answer{}
	}
	return anyAnswer(err)
}

// anyAnswer is answerOf, whoever it was that answered.
func anyAnswer(err error) (a answer) {
	var resp *smithyhttp.ResponseError
	if errors.As(err, &resp) {
		a.status = resp.HTTPStatusCode()
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		a.code, a.message = api.ErrorCode(), api.ErrorMessage()
	}
	return a
}

// classes of the error codes whose status does not say it, or says it wrongly.
var codeClass = map[string]error{
	"NoSuchKey":    blob.ErrNotExist,
	"NoSuchUpload": blob.ErrNotExist,
	"NoSuchBucket": blob.ErrDenied,

	"PreconditionFailed": blob.ErrPrecondition,

	"SlowDown": blob.ErrThrottled, "SlowDownRead": blob.ErrThrottled, "SlowDownWrite": blob.ErrThrottled,
	"Throttling": blob.ErrThrottled, "ThrottlingException": blob.ErrThrottled, "TooManyRequests": blob.ErrThrottled,
	"TooManyRequestsException": blob.ErrThrottled, "RequestLimitExceeded": blob.ErrThrottled, "BandwidthLimitExceeded": blob.ErrThrottled,

	"ExpiredToken": blob.ErrTemporary, "ExpiredTokenException": blob.ErrTemporary, "TokenRefreshRequired": blob.ErrTemporary,
	"RequestTimeTooSkewed": blob.ErrTemporary, "RequestExpired": blob.ErrTemporary,
	"InternalError": blob.ErrTemporary, "ServiceUnavailable": blob.ErrThrottled, "RequestTimeout": blob.ErrTemporary,
	"IncompleteBody": blob.ErrTemporary, "OperationAborted": blob.ErrTemporary, "ConditionalRequestConflict": blob.ErrTemporary,

	"AccessDenied": blob.ErrDenied, "SignatureDoesNotMatch": blob.ErrDenied, "InvalidAccessKeyId": blob.ErrDenied,
	"InvalidToken": blob.ErrDenied, "AuthorizationHeaderMalformed": blob.ErrDenied, "AccountProblem": blob.ErrDenied,
	"AllAccessDisabled": blob.ErrDenied, "PermanentRedirect": blob.ErrDenied, "InvalidBucketName": blob.ErrDenied,
	"IllegalLocationConstraintException": blob.ErrDenied,

	"BadDigest": blob.ErrCorrupt, "XAmzContentChecksumMismatch": blob.ErrCorrupt, "XAmzContentSHA256Mismatch": blob.ErrCorrupt,
	"InvalidPart": blob.ErrCorrupt, "InvalidPartOrder": blob.ErrCorrupt,

	"InvalidObjectState": blob.ErrArchived, "ObjectNotInActiveTierError": blob.ErrArchived,

	"NotImplemented": blob.ErrUnsupported, "EntityTooLarge": blob.ErrUnsupported, "EntityTooSmall": blob.ErrUnsupported,
	"KeyTooLongError": blob.ErrUnsupported, "InvalidRange": blob.ErrUnsupported,
	// Servers over a directory, where the keys a and a/b exclude each other.
	"ObjectParentIsFile": blob.ErrUnsupported, directoryCode: blob.ErrUnsupported,
}

// directoryCode is such a server's word for a key that is a directory.
const directoryCode = "ExistingObjectIsDirectory"

// staleCodes are the codes after which the credentials are worth resolving again.
var staleCodes = map[string]bool{
	"ExpiredToken": true, "ExpiredTokenException": true, "TokenRefreshRequired": true, "RequestTimeTooSkewed": true, "RequestExpired": true,
	"InvalidToken": true, "InvalidAccessKeyId": true, "SignatureDoesNotMatch": true,
}

// class says to which class of package blob an answer belongs.
func (a answer) class() error {
	if c, ok := codeClass[a.code]; ok {
		return c
	}
	if strings.HasPrefix(a.code, "KMS.") {
		return blob.ErrDenied
	}
	if a.status == http.StatusNotModified {
		return blob.ErrTemporary // nothing was asked for that it could answer
	}
	return blob.HTTPClass(a.status) // 3xx: another region; 404: see hint
}

// hint is what a person can do about it.
func (a answer) hint() string {
	switch {
	case a.code == "NoSuchBucket":
		return "; the bucket does not exist there: check its name, region and endpoint"
	case a.status == http.StatusNotFound && a.class() == blob.ErrDenied:
		return "; that is no answer of an object store: check the endpoint"
	case a.status >= 300 && a.status < 400, a.code == "AuthorizationHeaderMalformed":
		return "; the bucket is in another region: set region="
	case a.code == "SignatureDoesNotMatch", a.code == "InvalidAccessKeyId", a.code == "InvalidToken":
		return "; check the access key and its secret"
	case a.code == "RequestTimeTooSkewed":
		return "; check this host's clock"
	case a.class() == blob.ErrArchived:
		return "; restore the object from its storage class first"
	}
	return ""
}

func (a answer) String() string {
	s := "the store answered"
	if a.status != 0 {
		s += fmt.Sprintf(" %d", a.status)
	}
	if a.code != "" {
		s += " " + a.code
	}
	if a.message != "" && a.message != a.code {
		s += ": " + a.message
	}
	return s + a.hint()
}

// fail turns the error of an SDK call into one of package blob. The SDK's own
// error is kept as text only: it may match context errors (every timeout of
// package net does) although ctx is not done.
func (b *Bucket) fail(ctx context.Context, op, key string, err error) *blob.Error {
	if ctx.Err() != nil {
		return &blob.Error{Op: op, Key: key, Kind: ctx.Err(), Err: context.Cause(ctx)}
	}
	var own *blob.Error
	if errors.As(err, &own) {
		return own
	}
	if stalled, ok := errors.AsType[*stall.Error](err); ok {
		return blob.Errorf(blob.ErrTemporary, op, key, "%w", stalled)
	}
	if a := answerOf(err); a.status != 0 && a.code+a.message != "" || a.status >= 300 {
		kind := a.class()
		if staleCodes[a.code] {
			used := signedWith(err)
			b.creds.refused(used)
			if kind == blob.ErrDenied && b.creds.renewed(ctx, used) {
				kind = blob.ErrTemporary // others are there now
			}
		}
		return blob.Errorf(kind, op, key, "%s", a)
	}
	var creds *credentialsError
	if errors.As(err, &creds) {
		const how = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role"
		switch {
		case !creds.permanent():
			return blob.Errorf(blob.ErrTemporary, op, key, "%s", creds)
		case creds.nothing():
			return blob.Errorf(blob.ErrDenied, op, key, "there are no credentials; looked at %s; %s", b.sources(), how)
		}
		return blob.Errorf(blob.ErrDenied, op, key, "%s; %s", creds, how)
	}
	if untrusted := new(tls.CertificateVerificationError); errors.As(err, &untrusted) {
		return blob.Errorf(blob.ErrDenied, op, key, "%s; set AWS_CA_BUNDLE if the store has a certificate of its own", untrusted)
	}
	return blob.Errorf(blob.ErrTemporary, op, key, "%s", plain(err))
}

// plain is the text of an SDK error without its layers of "operation error".
func plain(err error) string {
	var send *smithyhttp.RequestSendError
	if errors.As(err, &send) {
		return send.Err.Error()
	}
	return err.Error()
}

// isNetwork reports whether err comes from the network or a server's trouble.
func isNetwork(err error) bool {
	var n net.Error
	if errors.As(err, &n) {
		return true
	}
	return anyAnswer(err).status >= 500
}
