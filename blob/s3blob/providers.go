package s3blob

import (
	"cmp"
	"net/url"
	"strings"
)

// provider is what a store does in a way of its own, and does not tell: what
// it refuses with a misleading error, or takes and ignores. What it says
// plainly is found out by asking (see ladder, Bucket.batch, List).
//
// Some things that stores quarrel about are in no column, because the driver
// does the same for all: it sends no trailers and no chunked payloads (R2, GCS,
// OSS, COS and OCI refuse them), all parts but the last have one size (R2
// demands it), Accept-Encoding is not signed (GCS and proxies change it),
// listings are read in whatever order and with encoded keys only where XML
// cannot hold one, and batches of deletions carry a Content-MD5 (OSS and COS
// demand that one).
type provider struct {
	name string
	// hosts are patterns of endpoints, matched from the end of the host name,
	// the first that fits; {region} is a label, or its rest, that names the region.
	hosts []string
	// checksum is the first that is tried.
	checksum mode
	// style is where the bucket's name goes.
	style style
	// region signs requests where neither the URL, the environment nor the
	// host name says one.
	region string
	// noIfAbsent is why create-if-absent is not tried; empty where it is.
	noIfAbsent string
	// noBatch: there is no request that deletes many objects.
	noBatch bool
	// amazon: it has storage classes, FIPS, dualstack and acceleration endpoints
	// of these names.
	amazon bool
	// header and value go with every request.
	header, value string
}

// style is where in a URL the bucket's name goes.
type style int

const (
	byEndpoint style = iota // into the path of an address or a name without a dot, else in front of the host
	inHost
	inPath
)

// defaultRegion is what most servers of one's own expect.
const defaultRegion = "us-east-1"

// providers is the table. The last row is everything else. Its facts are those
// of documentation and of reports; nobody has promised them.
var providers = []provider{
	{name: "aws", hosts: []string{"s3.{region}.amazonaws.com", "s3.dualstack.{region}.amazonaws.com", "s3-fips.{region}.amazonaws.com", "amazonaws.com", "amazonaws.com.cn"}, style: inHost, amazon: true},
	{name: "r2", hosts: []string{"r2.cloudflarestorage.com"}, style: inPath, region: "auto"},
	{
		name: "gcs", hosts: []string{"googleapis.com"}, checksum: md5sum, style: inPath, region: "auto", noBatch: true,
		noIfAbsent: "Google documents If-None-Match for reading only; use a gs:// URL",
	},
	{name: "oss", hosts: []string{"oss-{region}.aliyuncs.com", "aliyuncs.com"}, checksum: md5sum, style: inHost},
	{name: "cos", hosts: []string{"cos.{region}.myqcloud.com", "myqcloud.com"}, checksum: md5sum, style: inHost},
	{
		name: "oci", hosts: []string{"compat.objectstorage.{region}.oraclecloud.com", "compat.objectstorage.{region}.oci.customer-oci.com"}, style: inPath,
		noIfAbsent: "Oracle's S3 interface ignores If-None-Match and overwrites",
	},
	{name: "b2", hosts: []string{"s3.{region}.backblazeb2.com"}, checksum: md5sum, style: inPath},
	{name: "wasabi", hosts: []string{"s3.{region}.wasabisys.com", "wasabisys.com"}, style: inPath},
	{name: "digitalocean", hosts: []string{"digitaloceanspaces.com"}, style: inHost, region: defaultRegion},
	{name: "linode", hosts: []string{"{region}.linodeobjects.com"}, style: inHost},
	{name: "scaleway", hosts: []string{"s3.{region}.scw.cloud"}, style: inHost},
	{name: "ovh", hosts: []string{"s3.{region}.io.cloud.ovh.net", "s3.{region}.cloud.ovh.net"}, style: inHost},
	{name: "coreweave", hosts: []string{"cwobject.com", "coreweave.com"}, style: inHost},
	// Reads may come from another region than the write went to, unless one asks.
	{name: "tigris", hosts: []string{"t3.storage.dev", "fly.storage.tigris.dev"}, style: inHost, region: "auto", header: "X-Tigris-Consistent", value: "true"},
	// Servers of one's own have any host name: provider= names them.
	{name: "minio", style: inPath},
	{name: "ceph", style: inPath},
	{name: "seaweedfs", style: inPath},
	{name: "versitygw", style: inPath},
	{name: "other"},
}

// providerNames are those that provider= takes.
func providerNames() (names []string) {
	for _, p := range providers {
		names = append(names, p.name)
	}
	return names
}

func providerNamed(name string) (provider, bool) {
	for _, p := range providers {
		if p.name == name {
			return p, true
		}
	}
	return provider{}, false
}

// providerOf recognizes an endpoint; "" is Amazon's. region is what the host
// name says, if it does.
func providerOf(endpoint string) (p provider, region string) {
	if endpoint == "" {
		return providers[0], ""
	}
	other := providers[len(providers)-1]
	u, err := url.Parse(endpoint)
	if err != nil {
		return other, ""
	}
	labels := strings.Split(strings.ToLower(u.Hostname()), ".")
	for _, p := range providers {
		for _, pattern := range p.hosts {
			if region, ok := matchHost(labels, strings.Split(pattern, ".")); ok {
				return p, region
			}
		}
	}
	return other, ""
}

// matchHost compares the labels of a host name with those of a pattern, from
// the end.
func matchHost(labels, pattern []string) (region string, ok bool) {
	skip := len(labels) - len(pattern)
	if skip < 0 {
		return "", false
	}
	for i, want := range pattern {
		got := labels[skip+i]
		if before, named := strings.CutSuffix(want, "{region}"); named && strings.HasPrefix(got, before) {
			region = strings.TrimSuffix(got[len(before):], "-internal") // the same place, from inside
		} else if got != want {
			return "", false
		}
	}
	return region, true
}

// wantsPathStyle says whether the bucket's name goes into the path.
func (p provider) wantsPathStyle(endpoint string) bool {
	switch p.style {
	case inPath:
		return true
	case inHost:
		return false
	}
	return wantsPathStyle(endpoint)
}

// regionOr is the region of the signatures where none is configured.
func (p provider) regionOr(fromHost string) string {
	return cmp.Or(p.region, fromHost, defaultRegion)
}
