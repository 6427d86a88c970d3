package cdkblob

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// azureTarget is what the URL says beside the place.
type azureTarget struct {
	account   string
	domain    string
	endpoint  string // of the blob service, without a trailing slash
	anonymous bool
	tier      string
	checksum  string
}

// params are the parameters of a store URL, by name.
func (t *azureTarget) params() map[string]setter {
	t.checksum = "auto"
	return map[string]setter{
		"storage_account": text(&t.account), "domain": text(&t.domain), "anonymous": flag(&t.anonymous),
		"checksum": oneOf(&t.checksum, "auto", "crc64", "md5", "none"),
		"access_tier": func(v string) error {
			if strings.EqualFold(v, "Archive") {
				return errors.New("objects of the tier Archive cannot be read when a restore needs them")
			}
			return oneOf(&t.tier, "Hot", "Cool", "Cold")(v)
		},
		"endpoint": func(v string) (err error) {
			t.endpoint, err = serverURL(v, "https")
			return err
		},
	}
}

// connect makes the client of a container.
func (t *azureTarget) connect(name string, client *http.Client) (*container.Client, error) {
	opts := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: client,
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{ApplicationID: "ckptsync"},
	}}
	// With a signature in the URL, the SDK's own would wait for an answer to
	// every header first; the store may refuse a body just as well.
	connection := os.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	if connection != "" && t.account == "" && t.endpoint == "" && !t.anonymous {
		c, err := container.NewClientFromConnectionString(connection, name, opts)
		if err != nil {
			return nil, errors.New("open azblob://" + name + ": AZURE_STORAGE_CONNECTION_STRING is malformed") // the SDK's error may repeat it
		}
		return c, nil
	}
	service, account, err := t.service()
	if err != nil {
		return nil, fmt.Errorf("open azblob://%s: %w", name, err)
	}
	at := service + "/" + url.PathEscape(name)
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), strings.TrimPrefix(os.Getenv("AZURE_STORAGE_SAS_TOKEN"), "?")
	switch {
	case t.anonymous:
		return container.NewClientWithNoCredential(at, opts)
	case key != "" && account != "":
		cred, err := container.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, fmt.Errorf("open azblob://%s: AZURE_STORAGE_KEY is not the base64 key of an account", name) // without the key
		}
		return container.NewClientWithSharedKeyCredential(at, cred, opts)
	case sas != "":
		if _, err := url.ParseQuery(sas); err != nil {
			return nil, fmt.Errorf("open azblob://%s: AZURE_STORAGE_SAS_TOKEN is malformed", name)
		}
		return container.NewClientWithNoCredential(at+"?"+sas, opts)
	}
	if strings.HasPrefix(service, "http://") {
		return container.NewClientWithNoCredential(at, opts) // a token must not go over a wire that anybody may read
	}
	cred, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("open azblob://%s: no credentials: %w", name, err)
	}
	return container.NewClient(at, cred, opts)
}

// service is the URL of the blob service, and the account.
func (t *azureTarget) service() (service, account string, err error) {
	if account = t.account; account == "" {
		account = os.Getenv("AZURE_STORAGE_ACCOUNT")
	}
	if t.endpoint != "" {
		return t.endpoint, account, nil
	}
	if account == "" {
		return "", "", errors.New("no storage account: add ?storage_account= or set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING")
	}
	if strings.Trim(account, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return "", "", fmt.Errorf("%q is no name of a storage account", account)
	}
	domain := t.domain
	if domain == "" {
		domain = os.Getenv("AZURE_STORAGE_DOMAIN")
	}
	if domain == "" {
		domain = "blob.core.windows.net"
	}
	if service, err = serverURL("https://"+account+"."+strings.TrimPrefix(domain, "."), "https"); err != nil {
		return "", "", fmt.Errorf("%q is not the domain of a blob service", domain)
	}
	return service, account, nil
}
