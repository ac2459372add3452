package modelcache

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// S3 is a store that speaks S3, and who asks it.
type S3 struct {
	// Endpoint is the address of the store; empty is Amazon's of the region. "{bucket}" in it stands for the bucket, which
	// else becomes the first part of the path.
	Endpoint     string
	Region       string // empty is us-east-1
	AccessKey    string
	SecretKey    string
	SessionToken string
}

// s3OfTask is what a task's own environment says, in the words of Amazon's tools.
func s3OfTask(env map[string]string) S3 {
	return S3{
		Endpoint:  cmp.Or(env["AWS_ENDPOINT_URL_S3"], env["AWS_ENDPOINT_URL"]),
		Region:    cmp.Or(env["AWS_REGION"], env["AWS_DEFAULT_REGION"]),
		AccessKey: env["AWS_ACCESS_KEY_ID"], SecretKey: env["AWS_SECRET_ACCESS_KEY"], SessionToken: env["AWS_SESSION_TOKEN"],
	}
}

// s3Origin is a source in a store. A task's own credentials go with its own address, the node's with the node's: the
// latter are never used at an address that a task names.
func (c *Cache) s3Origin(s source, env map[string]string) (origin, error) {
	store := s3OfTask(env)
	switch {
	case (store.AccessKey == "") != (store.SecretKey == ""):
		return nil, errors.New("source: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing in the task's environment: set both, or none for the node's credentials")
	case store.AccessKey == "" && store.Endpoint == "":
		region := store.Region
		store = c.o.S3
		store.Region = cmp.Or(region, store.Region)
	case store.AccessKey != "" && store.Endpoint == "":
		store.Endpoint = c.o.S3.Endpoint
		store.Region = cmp.Or(store.Region, c.o.S3.Region)
	}
	store.Region = cmp.Or(store.Region, "us-east-1")
	base, err := store.base(s.url.Host, s.url.Path)
	if err != nil {
		return nil, err
	}
	o := &httpOrigin{client: c.o.Client, base: base, sign: func(*http.Request) error { return nil }}
	if store.AccessKey != "" {
		o.sign = store.sign
	}
	o.refuse = func(resp *http.Response) error { return refusedByS3(o, resp) }
	return o, nil
}

// base is the URL of a bucket's key.
func (s S3) base(bucket, key string) (*url.URL, error) {
	endpoint := s.Endpoint
	if endpoint == "" {
		endpoint = "https://{bucket}.s3." + s.Region + ".amazonaws.com"
		if strings.Contains(bucket, ".") { // no certificate fits
			endpoint = "https://s3." + s.Region + ".amazonaws.com"
		}
	}
	inHost := strings.Contains(endpoint, "{bucket}")
	u, err := url.Parse(strings.ReplaceAll(endpoint, "{bucket}", bucket))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New(`source: the address of the S3 store is not one: write for example AWS_ENDPOINT_URL_S3 = "https://minio.example:9000", or "https://{bucket}.store.example"`)
	}
	path := strings.TrimSuffix(u.Path, "/")
	if !inHost {
		path += "/" + bucket
	}
	u.Path = path + key
	u.RawPath = escape(u.Path)
	return u, nil
}

// emptyHash is the SHA-256 of no body.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sign puts a signature of version 4 on a request.
func (s S3) sign(req *http.Request) error {
	req.Header.Set("X-Amz-Content-Sha256", emptyHash)
	who := aws.Credentials{AccessKeyID: s.AccessKey, SecretAccessKey: s.SecretKey, SessionToken: s.SessionToken}
	unescaped := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true } // S3 signs the path as it is sent
	if err := v4.NewSigner().SignHTTP(context.WithoutCancel(req.Context()), who, req, emptyHash, "s3", s.Region, time.Now().UTC(), unescaped); err != nil {
		return errors.New("the request to the S3 store cannot be signed: look at the credentials")
	}
	return nil
}

var s3Code = regexp.MustCompile(`^[A-Za-z0-9.]{1,64}$`)

// refusedByS3 says what the store says, by its code alone: the rest may repeat what was signed.
func refusedByS3(o *httpOrigin, resp *http.Response) error {
	var said struct {
		Code string `xml:"Code"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil || xml.Unmarshal(body, &said) != nil || !s3Code.MatchString(said.Code) {
		said.Code = ""
	}
	if code := resp.StatusCode; code >= 300 && code < 400 {
		region := resp.Header.Get("X-Amz-Bucket-Region")
		if !s3Code.MatchString(strings.ReplaceAll(region, "-", "")) {
			region = "…"
		}
		return stubbornf("%s: the bucket lies elsewhere (%d): set AWS_REGION = %q in the task's environment, or the store's address", o, code, region)
	}
	if said.Code != "" {
		return o.refused(resp, fmt.Sprintf(", %s", said.Code))
	}
	return o.refused(resp, "")
}

// CheckEndpoint says what is wrong with the address of a store; empty is none.
func CheckEndpoint(endpoint string) error {
	_, err := S3{Endpoint: endpoint, Region: "us-east-1"}.base("bucket", "/key")
	return err
}
