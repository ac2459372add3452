// Package nomadapi holds narrow wrappers over the HTTP clients of Nomad and Consul: exactly the calls that
// HeteroFlow makes, with contexts, raw job JSON and errors that callers can branch on. What to do with the answers,
// and the part of Nomad's API that HeteroFlow itself serves, do not belong here.
package nomadapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// AllNamespaces asks a list for the objects of every namespace.
const AllNamespaces = "*"

// Client talks to one Nomad region with the service's own token. It is safe for concurrent use.
type Client struct {
	api   *api.Client
	conf  *api.Config
	token string
}

// Config says where Nomad is. Empty fields take Nomad's own environment variables, TLS included.
type Config struct {
	Addr  string // such as http://127.0.0.1:4646
	Token string
}

// New makes a client; it does not connect.
func New(c Config) (*Client, error) {
	conf := api.DefaultConfig()
	if c.Addr != "" {
		conf.Address = c.Addr
	}
	if c.Token != "" {
		conf.SecretID = c.Token
	}
	conf.Namespace = ""
	client, err := api.NewClient(conf)
	if err != nil {
		return nil, fmt.Errorf("make nomad client for %s: %w", conf.Address, err)
	}
	return &Client{api: client, conf: conf, token: conf.SecretID}, nil
}

// ServiceToken is the token that the client sends; empty when there is none.
func (c *Client) ServiceToken() string { return c.token }

// Transport makes a transport of its own for passing requests on, with the client's TLS settings: it leaves
// compression alone, speaks HTTP/1.1, as upgrades need it, and has no limit of time on answers.
func (c *Client) Transport() (*http.Transport, *url.URL, error) {
	target, err := url.Parse(c.api.Address())
	if err != nil {
		return nil, nil, fmt.Errorf("read nomad address: %w", err)
	}
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		DisableCompression:    true,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	if c.conf.TLSConfig != nil {
		if err := api.ConfigureTLS(&http.Client{Transport: transport}, c.conf.TLSConfig); err != nil {
			return nil, nil, fmt.Errorf("configure TLS towards nomad: %w", err)
		}
	}
	return transport, target, nil
}

// Address is the address the client talks to.
func (c *Client) Address() string { return c.api.Address() }

// Ping asks whether the cluster has a leader.
func (c *Client) Ping(ctx context.Context) error {
	var leader string
	if _, err := c.api.Raw().Query("/v1/status/leader", &leader, query(ctx, "")); err != nil {
		return fmt.Errorf("ask nomad for its leader: %w", err)
	}
	if leader == "" {
		return errors.New("nomad has no leader")
	}
	return nil
}

// Regions asks for the names of the regions; the first is where the client's agent is.
func (c *Client) Regions(ctx context.Context) ([]string, error) {
	var out []string
	if _, err := c.api.Raw().Query("/v1/regions", &out, query(ctx, "")); err != nil {
		return nil, fmt.Errorf("list nomad regions: %w", err)
	}
	return out, nil
}

// Token is what Nomad says about a token.
type Token struct {
	AccessorID string
	Name       string
	Type       string // client or management
	Policies   []string
}

// TokenSelf resolves somebody's token. IsDenied reports a token that Nomad does not know.
func (c *Client) TokenSelf(ctx context.Context, token string) (Token, error) {
	q := query(ctx, "")
	q.AuthToken = token
	var out Token
	if _, err := c.api.Raw().Query("/v1/acl/token/self", &out, q); err != nil {
		return Token{}, fmt.Errorf("resolve nomad token: %w", err)
	}
	return out, nil
}

// IsNotFound reports whether Nomad answered that the object does not exist.
func IsNotFound(err error) bool { return StatusOf(err) == http.StatusNotFound }

// IsDenied reports whether Nomad refused the token.
func IsDenied(err error) bool {
	s := StatusOf(err)
	return s == http.StatusForbidden || s == http.StatusUnauthorized
}

// IsAnswer reports whether the error is Nomad's own answer about the request. Otherwise Nomad could not be
// reached, or had no leader, and the call may be repeated as it is.
func IsAnswer(err error) bool {
	s := StatusOf(err)
	if s == 0 || s == http.StatusBadGateway || s == http.StatusServiceUnavailable || s == http.StatusGatewayTimeout || s == http.StatusTooManyRequests {
		return false
	}
	return s != http.StatusInternalServerError || !transient(AnswerText(err))
}

// AnswerText is the text of Nomad's answer, or of the error when there was none.
func AnswerText(err error) string {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) && unexpected.HasBody() {
		return unexpected.Body()
	}
	return err.Error()
}

// StatusOf is the HTTP status of Nomad's answer, 0 when there was none.
func StatusOf(err error) int {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) && unexpected.HasStatusCode() {
		return unexpected.StatusCode()
	}
	return 0
}

func query(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

func write(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

func blocking(ctx context.Context, namespace string, index uint64, wait time.Duration) *api.QueryOptions {
	q := query(ctx, namespace)
	q.WaitIndex, q.WaitTime = index, wait
	return q
}

func jobPath(id, suffix string) string { return "/v1/job/" + url.PathEscape(id) + suffix }

// Tree is a job as a generic JSON tree, so that fields this program does not know survive. Numbers are json.Number.
type Tree = map[string]any

// DecodeTree reads JSON so that no number loses a digit. Text after the value is an error.
func DecodeTree(body []byte, out any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(out); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// Job fetches a job as a tree. IsNotFound reports that there is none.
func (c *Client) Job(ctx context.Context, namespace, id string) (Tree, error) {
	var body json.RawMessage
	if _, err := c.api.Raw().Query(jobPath(id, ""), &body, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("get job %s: %w", id, err)
	}
	var out Tree
	if err := DecodeTree(body, &out); err != nil {
		return nil, fmt.Errorf("read job %s: %w", id, err)
	}
	return out, nil
}

// JobVersion fetches one version of a job as a tree.
func (c *Client) JobVersion(ctx context.Context, namespace, id string, version uint64) (Tree, error) {
	var body json.RawMessage
	if _, err := c.api.Raw().Query(jobPath(id, "/versions"), &body, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("get versions of job %s: %w", id, err)
	}
	var out struct{ Versions []Tree }
	if err := DecodeTree(body, &out); err != nil {
		return nil, fmt.Errorf("read versions of job %s: %w", id, err)
	}
	for _, v := range out.Versions {
		if n, ok := v["Version"].(json.Number); ok && n.String() == strconv.FormatUint(version, 10) {
			return v, nil
		}
	}
	return nil, fmt.Errorf("job %s has no version %d", id, version)
}

// Register sends a JobRegisterRequest as it is and returns Nomad's answer as it is.
func (c *Client) Register(ctx context.Context, namespace string, request json.RawMessage) (Tree, error) {
	return c.post(ctx, namespace, "/v1/jobs", request)
}

// Plan sends a JobPlanRequest as it is.
func (c *Client) Plan(ctx context.Context, namespace, id string, request json.RawMessage) (Tree, error) {
	return c.post(ctx, namespace, jobPath(id, "/plan"), request)
}

// Validate sends a JobValidateRequest as it is.
func (c *Client) Validate(ctx context.Context, namespace string, request json.RawMessage) (Tree, error) {
	return c.post(ctx, namespace, "/v1/validate/job", request)
}

// MayPlan asks, with somebody's own token, whether Nomad lets them plan the job: the right that a user of the
// service needs to have it registered for them. The job itself is not judged.
func (c *Client) MayPlan(ctx context.Context, token, namespace, id string, request json.RawMessage) (bool, error) {
	w := write(ctx, namespace)
	w.AuthToken = token
	_, err := c.api.Raw().Write(jobPath(id, "/plan"), request, nil, w)
	switch {
	case IsDenied(err):
		return false, nil
	case err != nil && !IsAnswer(err):
		return false, fmt.Errorf("ask nomad whether a token may plan: %w", err)
	}
	return true, nil
}

func (c *Client) post(ctx context.Context, namespace, path string, request json.RawMessage) (Tree, error) {
	var body json.RawMessage
	if _, err := c.api.Raw().Write(path, request, &body, write(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("post %s: %w", path, err)
	}
	var out Tree
	if err := DecodeTree(body, &out); err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", path, err)
	}
	return out, nil
}

// Deregister stops a job and returns the evaluation's id. IsNotFound reports that there is none.
func (c *Client) Deregister(ctx context.Context, namespace, id string, purge bool) (string, error) {
	var out api.JobDeregisterResponse
	path := jobPath(id, "")
	if purge {
		path += "?purge=true"
	}
	if _, err := c.api.Raw().Delete(path, &out, write(ctx, namespace)); err != nil {
		return "", fmt.Errorf("stop job %s: %w", id, err)
	}
	return out.EvalID, nil
}

// StopAlloc stops one allocation; Nomad replaces it.
func (c *Client) StopAlloc(ctx context.Context, namespace, id string) error {
	if _, err := c.api.Raw().Write("/v1/allocation/"+url.PathEscape(id)+"/stop", nil, nil, write(ctx, namespace)); err != nil {
		return fmt.Errorf("stop allocation %s: %w", id, err)
	}
	return nil
}

// Scale sets the count of a group of a job; the message is kept with it.
func (c *Client) Scale(ctx context.Context, namespace, id, group string, count int64, message string) error {
	request := api.ScalingRequest{Count: &count, Target: map[string]string{"Group": group}, Message: message}
	if _, err := c.api.Raw().Write(jobPath(id, "/scale"), request, nil, write(ctx, namespace)); err != nil {
		return fmt.Errorf("scale group %s of job %s to %d: %w", group, id, count, err)
	}
	return nil
}
