package cdkblob

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	azb "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/ckptsync/ckptsync/blob"
)

// Azure is one prefix of a container of Azure Blob Storage; a blob.Bucket,
// blob.UploadLister and blob.Describer.
type Azure struct {
	place
	azureTarget

	client    *container.Client
	log       *slog.Logger
	sums      atomic.Int32 // the checksum to send, see azureSums
	pageSize  int32        // objects in a page of a listing; 0: as many as the store likes
	unordered atomic.Bool
}

var (
	_ blob.Bucket       = (*Azure)(nil)
	_ blob.UploadLister = (*Azure)(nil)
	_ blob.Describer    = (*Azure)(nil)
)

// OpenAzure returns the bucket that a URL of the form
//
//	azblob://container/prefix?storage_account=name
//
// names. It asks the store nothing. The account and its credentials come from
// the environment: AZURE_STORAGE_CONNECTION_STRING; or AZURE_STORAGE_ACCOUNT
// with AZURE_STORAGE_KEY, with AZURE_STORAGE_SAS_TOKEN, or with what Azure's
// SDK finds (AZURE_CLIENT_ID and so on, a workload identity, the managed
// identity of the machine, the az command). The parameters:
//
//	storage_account  instead of AZURE_STORAGE_ACCOUNT
//	domain           instead of AZURE_STORAGE_DOMAIN; default blob.core.windows.net
//	endpoint         the URL of the blob service, such as
//	                 http://127.0.0.1:10000/devstoreaccount1
//	anonymous        send no credentials
//	access_tier      of the objects: Hot, Cool or Cold; by default the account's
//	checksum         auto (default), crc64, md5 or none
//
// An unknown parameter is an error.
func OpenAzure(_ context.Context, rawURL string, opts Options) (*Azure, error) {
	opts = opts.withDefaults()
	a := &Azure{log: opts.Logger, pageSize: opts.page}
	var err error
	if a.place, err = parsePlace(rawURL, "azblob", a.params()); err != nil {
		return nil, err
	}
	a.sums.Store(int32(a.first()))
	if a.client, err = a.connect(a.bucket, newHTTPClient(opts.Concurrency, opts.Stall, opts.wrap)); err != nil {
		return nil, err
	}
	return a, nil
}

// Location implements blob.Describer.
func (a *Azure) Location(key string) string { return "azblob://" + a.bucket + "/" + a.prefix + key }

// object is place.object for a store that takes a backslash for a slash.
func (a *Azure) object(op, key string) (string, error) {
	if strings.Contains(key, `\`) {
		return "", blob.Errorf(blob.ErrUnsupported, op, key, `invalid key: Azure would take its \ for a /`)
	}
	return a.place.object(op, key)
}

// Stat implements blob.Bucket.
func (a *Azure) Stat(ctx context.Context, key string) (blob.Info, error) {
	full, err := a.object("stat", key)
	if err != nil {
		return blob.Info{}, err
	}
	info, _, err := a.stat(ctx, "stat", key, full)
	return info, err
}

// stat asks for what is known of a blob, and for its metadata.
func (a *Azure) stat(ctx context.Context, op, key, full string) (blob.Info, map[string]*string, error) {
	props, err := a.client.NewBlobClient(full).GetProperties(ctx, nil)
	if err != nil {
		return blob.Info{}, nil, a.fail(ctx, op, key, err)
	}
	if isFolder(props.Metadata) {
		return blob.Info{}, nil, blob.Errorf(blob.ErrNotExist, op, key, "it is a directory of a hierarchical namespace")
	}
	if props.ContentLength == nil || props.ETag == nil {
		return blob.Info{}, nil, blob.Errorf(blob.ErrTemporary, op, key, "the store does not say size and ETag: check the endpoint")
	}
	info := blob.Info{Key: key, Size: *props.ContentLength, ETag: etagOf(props.ETag)}
	if props.LastModified != nil {
		info.ModTime = *props.LastModified
	}
	return info, props.Metadata, nil
}

// etagOf is an ETag without its quotes, which listings leave out.
func etagOf(e *azcore.ETag) string {
	if e == nil {
		return ""
	}
	return strings.Trim(string(*e), `"`)
}

// isFolder reports whether metadata is that of a directory, which accounts with
// a hierarchical namespace show as an empty blob.
func isFolder(metadata map[string]*string) bool {
	for name, value := range metadata {
		if strings.EqualFold(name, "hdi_isfolder") && value != nil && strings.EqualFold(*value, "true") {
			return true
		}
	}
	return false
}

// Delete implements blob.Bucket.
func (a *Azure) Delete(ctx context.Context, key string) error {
	full, err := a.object("delete", key)
	if err != nil {
		return err
	}
	_, err = a.client.NewBlobClient(full).Delete(ctx, nil)
	if err == nil {
		return nil
	}
	if err := a.fail(ctx, "delete", key, err); !errors.Is(err, blob.ErrNotExist) {
		return err
	}
	return nil
}

// List implements blob.Bucket.
func (a *Azure) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return inOrder(prefix, &a.unordered, func(yield func([]blob.Info, error) bool) {
		for items, err := range a.items(ctx, prefix, container.ListBlobsInclude{Metadata: false}) {
			if err != nil {
				yield(nil, err)
				return
			}
			page := make([]blob.Info, 0, len(items))
			for _, item := range items {
				if p := item.Properties; p.ResourceType != nil && *p.ResourceType == "directory" {
					continue
				}
				info, err := a.info(prefix, item)
				if err != nil {
					yield(nil, err)
					return
				}
				page = append(page, info)
			}
			if !yield(page, nil) {
				return
			}
		}
	})
}

// info makes an Info of an entry of a listing.
func (a *Azure) info(prefix string, item *container.BlobItem) (blob.Info, error) {
	key, ours := strings.CutPrefix(*item.Name, a.prefix)
	if !ours || !strings.HasPrefix(key, prefix) {
		return blob.Info{}, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q, which is not below the prefix", *item.Name)
	}
	p := item.Properties
	if p.ContentLength == nil || p.ETag == nil {
		return blob.Info{}, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q without size or ETag", key)
	}
	info := blob.Info{Key: key, Size: *p.ContentLength, ETag: etagOf(p.ETag)}
	if p.LastModified != nil {
		info.ModTime = *p.LastModified
	}
	return info, nil
}

// items yields the pages of a listing as the store gives them.
func (a *Azure) items(ctx context.Context, prefix string, include container.ListBlobsInclude) iter.Seq2[[]*container.BlobItem, error] {
	return func(yield func([]*container.BlobItem, error) bool) {
		marker := ""
		for {
			opts := &container.ListBlobsFlatOptions{Include: include}
			if p := a.prefix + prefix; p != "" {
				opts.Prefix = to.Ptr(p)
			}
			if a.pageSize > 0 {
				opts.MaxResults = to.Ptr(a.pageSize)
			}
			if marker != "" {
				opts.Marker = to.Ptr(marker)
			}
			// A pager of one page: its own would repeat a marker for ever.
			page, err := a.client.NewListBlobsFlatPager(opts).NextPage(ctx)
			if err != nil {
				yield(nil, a.fail(ctx, "list", prefix, err))
				return
			}
			if page.Segment == nil {
				yield(nil, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store's answer is no answer of Azure: check the endpoint"))
				return
			}
			var items []*container.BlobItem
			for _, item := range page.Segment.BlobItems {
				if item.Name != nil && item.Properties != nil {
					items = append(items, item)
				}
			}
			if !yield(items, nil) || page.NextMarker == nil || *page.NextMarker == "" {
				return
			}
			if *page.NextMarker == marker {
				yield(nil, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store says that there is more, but not how to go on"))
				return
			}
			marker = *page.NextMarker
		}
	}
}

// block is the client of one blob.
func (a *Azure) block(full string) *blockblob.Client { return a.client.NewBlockBlobClient(full) }

// headers are the properties of a new blob.
func headers(contentTypeOf string) *azb.HTTPHeaders {
	return &azb.HTTPHeaders{BlobContentType: to.Ptr(contentType(contentTypeOf))}
}

// tierOf is the access tier of new blobs; nil means the account's.
func (a *Azure) tierOf() *azb.AccessTier {
	if a.tier == "" {
		return nil
	}
	return to.Ptr(azb.AccessTier(a.tier))
}

// absent is the condition that nothing is there.
func absent() *azb.AccessConditions {
	return &azb.AccessConditions{ModifiedAccessConditions: &azb.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}}
}

// unchanged is the condition that a blob is still that version.
func unchanged(etag string) *azb.AccessConditions {
	return &azb.AccessConditions{ModifiedAccessConditions: &azb.ModifiedAccessConditions{IfMatch: to.Ptr(azcore.ETag(`"` + etag + `"`))}}
}
