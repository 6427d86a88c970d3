package stores

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// azuriteVersion is the version of the npm package. Later ones need a newer
// Node.js than many machines have.
const azuriteVersion = "3.35.0"

// The account of every Azurite that this package starts; the key is made up.
const AzureAccount = "ckptsynctest"

// azureKey returns the account's key.
func azureKey() string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("ckptsync test key"), 3))
}

// InstallAzurite returns the path of the JavaScript file that starts Azurite's
// blob service, installing the package with npm if the cache does not hold it
// yet. It needs Node.js and may be called by any number of processes at once.
func InstallAzurite(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("node"); err != nil {
		return "", fmt.Errorf("it needs Node.js 18 or later, and npm: %w", err)
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "azurite-"+azuriteVersion+"-"+runtime.GOOS+"-"+runtime.GOARCH)
	dir, err = once(ctx, dir, func() error { return npmInstall(ctx, "azurite@"+azuriteVersion, dir) })
	return filepath.Join(dir, "node_modules", "azurite", "dist", "src", "blob", "main.js"), err
}

// npmInstall installs a package below dir, which appears whole or not at all.
func npmInstall(ctx context.Context, pkg, dir string) error {
	tmp := fmt.Sprintf("%s.%d.tmp", dir, os.Getpid())
	defer os.RemoveAll(tmp)
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", tmp, "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", pkg)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm install %s: %w:\n%s", pkg, err, bytes.TrimSpace(out.Bytes()))
	}
	return os.Rename(tmp, dir)
}

// Azure is an Azurite process, an Azure Blob Storage, with its data.
type Azure struct{ *process }

// Azurite starts an Azurite for one test and stops it when the test ends. It
// skips the test where the server cannot be had, or fails it with
// CKPTSYNC_REQUIRE_SERVERS=1.
func Azurite(t testing.TB) *Azure {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	main, err := InstallAzurite(ctx)
	if err != nil {
		missing(t, "NO AZURE SERVER: azurite could not be installed", err)
	}
	a := &Azure{&process{dir: t.TempDir()}}
	a.command = func(p *process) *exec.Cmd {
		cmd := exec.Command("node", main, "--blobHost", "127.0.0.1", "--blobPort", p.port(), "--location", p.dir,
			"--silent", "--disableTelemetry", "--skipApiVersionCheck")
		cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+AzureAccount+":"+azureKey())
		return cmd
	}
	// Anything that it answers will do.
	a.healthy = func(resp *http.Response) bool { return resp.StatusCode >= 400 }
	a.run(t, "azurite")
	return a
}

// Endpoint is the URL of the blob service.
func (a *Azure) Endpoint() string { return "http://" + a.addr + "/" + AzureAccount }

// URL is the store URL of a prefix (which may be empty) in a container.
func (a *Azure) URL(container, prefix string) string {
	u := url.URL{Scheme: "azblob", Host: container, Path: "/" + prefix, RawQuery: url.Values{"endpoint": {a.Endpoint()}}.Encode()}
	return u.String()
}

// Container makes a container and returns its name.
func (a *Azure) Container(t testing.TB, name string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, a.Endpoint()+"/"+name+"?restype=container", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Format(http.TimeFormat)
	req.Header.Set("x-ms-date", now)
	req.Header.Set("x-ms-version", "2024-11-04")
	// Shared key: the verb, eleven headers that are not there, ours, the resource.
	sign := "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:" + now + "\nx-ms-version:2024-11-04\n/" + AzureAccount + "/" + AzureAccount + "/" + name + "\nrestype:container"
	key, err := base64.StdEncoding.DecodeString(azureKey())
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(sign))
	req.Header.Set("Authorization", "SharedKey "+AzureAccount+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("make container %s: %s", name, resp.Status)
	}
	return name
}

// AzureEnv is what a process needs in its environment to be let in; settings of
// the machine's owner are switched off.
func AzureEnv() []string {
	return []string{
		"AZURE_STORAGE_ACCOUNT=" + AzureAccount, "AZURE_STORAGE_KEY=" + azureKey(), "AZURE_STORAGE_SAS_TOKEN=",
		"AZURE_STORAGE_CONNECTION_STRING=", "AZURE_STORAGE_DOMAIN=",
	}
}
