package cdkblob

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/ckptsync/ckptsync/blob"
)

// azureClass has the classes of the error codes whose status does not say it.
var azureClass = map[string]error{
	"BlobNotFound": blob.ErrNotExist,

	"BlobAlreadyExists": blob.ErrPrecondition, "ConditionNotMet": blob.ErrPrecondition,

	"ContainerNotFound": blob.ErrDenied, "ContainerBeingDeleted": blob.ErrDenied, "ContainerDisabled": blob.ErrDenied,
	"AccountIsDisabled": blob.ErrDenied, "BlobImmutableDueToPolicy": blob.ErrDenied, "SnapshotsPresent": blob.ErrDenied,
	"LeaseIdMissing": blob.ErrDenied, "LeaseIdMismatchWithBlobOperation": blob.ErrDenied, "LeaseIdMismatchWithContainerOperation": blob.ErrDenied,

	"ServerBusy": blob.ErrThrottled, "OperationTimedOut": blob.ErrTemporary, "InternalError": blob.ErrTemporary,

	"Md5Mismatch": blob.ErrCorrupt, "Crc64Mismatch": blob.ErrCorrupt, "InvalidBlockList": blob.ErrCorrupt,

	"BlobArchived": blob.ErrArchived, "BlobBeingRehydrated": blob.ErrArchived,

	"InvalidRange": blob.ErrUnsupported, "InvalidBlobType": blob.ErrUnsupported, "ResourceTypeMismatch": blob.ErrUnsupported, "BlockCountExceedsLimit": blob.ErrUnsupported,
}

// azureAnswer is what Azure said to a request that failed.
type azureAnswer struct {
	status  int
	code    string
	message string
	server  string // the header of that name
}

// answered takes the answer out of an SDK error; false if there was none.
func answered(err error) (azureAnswer, bool) {
	resp, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return azureAnswer{}, false
	}
	a := azureAnswer{status: resp.StatusCode, code: resp.ErrorCode}
	if raw := resp.RawResponse; raw != nil {
		a.server = raw.Header.Get("Server")
		var doc struct{ Code, Message string }
		// The SDK has read the body, and lets it be read again this way only.
		if data, err := runtime.Payload(raw); err == nil && xml.Unmarshal(data, &doc) == nil {
			a.message, _, _ = strings.Cut(doc.Message, "\n") // what follows is the request's id and time
			if a.code == "" {
				a.code = doc.Code
			}
		}
	}
	return a, true
}

// class says to which class of package blob the answer belongs.
func (a azureAnswer) class() error {
	if c, ok := azureClass[a.code]; ok {
		return c
	}
	if a.code == "InvalidOperation" && strings.Contains(a.message, "contentMD5") { // Azurite's Md5Mismatch
		return blob.ErrCorrupt
	}
	return blob.HTTPClass(a.status) // 404: not that of a blob
}

// Error implements error.
func (a azureAnswer) Error() string {
	s := fmt.Sprintf("the store answered %d", a.status)
	if a.code != "" {
		s += " " + a.code
	}
	if a.message != "" {
		s += ": " + a.message
	}
	switch {
	case a.code == "ContainerNotFound":
		s += "; the container does not exist: check its name and the account"
	case a.status == http.StatusNotFound && a.class() == blob.ErrDenied:
		s += "; that is no answer about a blob: check the endpoint"
	case a.code == "AuthenticationFailed":
		s += "; check the key, or when the SAS token ends, and this host's clock"
	case a.class() == blob.ErrArchived:
		s += "; move the blob out of the archive tier first"
	}
	return s
}

// fail turns the error of an SDK call into one of package blob. The SDK's own
// text is not kept: it names URLs, which may hold a signature.
func (a *Azure) fail(ctx context.Context, op, key string, err error) *blob.Error {
	if ctx.Err() == nil {
		if answer, ok := answered(err); ok {
			return &blob.Error{Op: op, Key: key, Kind: answer.class(), Err: answer}
		}
		if auth, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
			kind, status := blob.ErrDenied, 0
			if auth.RawResponse != nil {
				if status = auth.RawResponse.StatusCode; status >= 500 || status == http.StatusTooManyRequests {
					kind = blob.ErrTemporary
				}
			}
			return blob.Errorf(kind, op, key, "no token: the token server answered %d; check the credentials", status)
		}
		if strings.Contains(err.Error(), "DefaultAzureCredential") {
			return blob.Errorf(blob.ErrDenied, op, key, "no credentials; set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and so on, or run `az login`")
		}
	}
	return noAnswer(ctx, op, key, err)
}
