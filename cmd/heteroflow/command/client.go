package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/internal/version"
)

const (
	defaultAddr = "http://127.0.0.1:3333"
	// callTimeout bounds a call that does not wait for anything on purpose.
	callTimeout = 30 * time.Second
	// predictTime bounds what a shell waits for while it completes a word.
	predictTime = 2 * time.Second
)

// connection is where the placement service is asked, and as whom.
type connection struct {
	addr, token, namespace, region *string
}

// withConnection adds the flags that say whom to ask.
func (c *command) withConnection() *connection {
	return &connection{
		addr:      c.flags.String("address", cmp.Or(c.env.Getenv("HETEROFLOW_ADDR"), defaultAddr), "`address` of the placement service, also HETEROFLOW_ADDR"),
		token:     c.flags.String("token", "", "key or Nomad `token`, also HETEROFLOW_TOKEN or NOMAD_TOKEN"),
		namespace: c.flags.String("namespace", "", "Nomad `namespace`, also NOMAD_NAMESPACE"),
		region:    c.flags.String("region", "", "Nomad `region`, also NOMAD_REGION"),
	}
}

// secret is the token from flag or environment.
func (c *command) secret(conn *connection) string {
	return cmp.Or(*conn.token, c.env.Getenv("HETEROFLOW_TOKEN"), c.env.Getenv("NOMAD_TOKEN"))
}

func (c *command) namespace(conn *connection) string {
	return cmp.Or(*conn.namespace, c.env.Getenv("NOMAD_NAMESPACE"), api.DefaultNamespace)
}

// address checks the address before anything is sent.
func address(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", &usageError{fmt.Sprintf("address %q is not one: write it as %s", text, defaultAddr)}
	}
	return strings.TrimRight(text, "/"), nil
}

// tls reads Nomad's own variables for certificates, which serve for the placement service too.
func (c *command) tls() *api.TLSConfig {
	return &api.TLSConfig{
		CACert: c.env.Getenv("NOMAD_CACERT"), CAPath: c.env.Getenv("NOMAD_CAPATH"),
		ClientCert: c.env.Getenv("NOMAD_CLIENT_CERT"), ClientKey: c.env.Getenv("NOMAD_CLIENT_KEY"),
		TLSServerName: c.env.Getenv("NOMAD_TLS_SERVER_NAME"), Insecure: c.env.Getenv("NOMAD_SKIP_VERIFY") == "true",
	}
}

// nomad gives a client that speaks Nomad's API with the placement service.
func (c *command) nomad(conn *connection) (*api.Client, error) {
	addr, err := address(*conn.addr)
	if err != nil {
		return nil, err
	}
	return api.NewClient(&api.Config{
		Address: addr, SecretID: c.secret(conn), Namespace: c.namespace(conn),
		Region: cmp.Or(*conn.region, c.env.Getenv("NOMAD_REGION")), TLSConfig: c.tls(),
	})
}

// service gives a client of the placement service's own API.
func (c *command) service(conn *connection) (*client.ClientWithResponses, error) {
	addr, err := address(*conn.addr)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() // the standard library's, by its documentation
	web := &http.Client{Transport: transport, Timeout: callTimeout}
	if strings.HasPrefix(addr, "https:") {
		if err := api.ConfigureTLS(web, c.tls()); err != nil {
			return nil, fmt.Errorf("set up TLS: %w", err)
		}
	}
	token := c.secret(conn)
	return client.NewClientWithResponses(addr, client.WithHTTPClient(web), client.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			r.Header.Set("User-Agent", "heteroflow/"+version.Version)
			return nil
		}))
}

// A response is an answer of the placement service's generated client.
type response interface {
	GetBody() []byte
	Status() string
	StatusCode() int
}

type response200[T any] interface {
	response
	GetJSON200() *T
}

type response201[T any] interface {
	response
	GetJSON201() *T
}

// read takes the body of an answer to a question: decoded, and as it was sent.
func read[T any](conn *connection, r response200[T], err error) (*T, []byte, error) {
	if err != nil {
		return nil, nil, unreachable(*conn.addr, err)
	}
	if err := answered(conn, r); err != nil {
		return nil, nil, err
	}
	if r.GetJSON200() == nil {
		return nil, nil, notOurs(conn, r)
	}
	return r.GetJSON200(), r.GetBody(), nil
}

// made takes the body of an answer to a creation.
func made[T any](conn *connection, r response201[T], err error) (*T, []byte, error) {
	if err != nil {
		return nil, nil, unreachable(*conn.addr, err)
	}
	if err := answered(conn, r); err != nil {
		return nil, nil, err
	}
	if r.GetJSON201() == nil {
		return nil, nil, notOurs(conn, r)
	}
	return r.GetJSON201(), r.GetBody(), nil
}

// done checks an answer without a body.
func done(conn *connection, r response, err error) error {
	if err != nil {
		return unreachable(*conn.addr, err)
	}
	return answered(conn, r)
}

func notOurs(conn *connection, r response) error {
	return fmt.Errorf("%s answered %s with something else: is this a placement service?", *conn.addr, r.Status())
}

// answered makes an error of a refusal: the problem's own words, and what to do about it.
func answered(conn *connection, r response) error {
	if r.StatusCode() < http.StatusMultipleChoices {
		return nil
	}
	var problem client.Problem
	if json.Unmarshal(r.GetBody(), &problem) != nil || problem.Title == "" {
		return notOurs(conn, r)
	}
	said := cmp.Or(text(problem.Detail), problem.Title)
	if problem.Errors != nil {
		for _, field := range *problem.Errors {
			said += fmt.Sprintf("\n  %s: %s", cmp.Or(field.Pointer, "body"), field.Detail)
		}
	}
	if r.StatusCode() == http.StatusUnauthorized {
		said += "\nGive a key: -token, or HETEROFLOW_TOKEN in the environment."
	}
	return errors.New(said)
}

// unreachable says what to do about a server that does not answer.
func unreachable(addr string, err error) error {
	var netErr *url.Error
	if !errors.As(err, &netErr) {
		return err
	}
	return fmt.Errorf("%s does not answer: %w\nStart it with \"heteroflow server\" or \"heteroflow dev\", or set HETEROFLOW_ADDR to where it runs", addr, netErr.Err)
}

// nomadError makes a short sentence of an error of Nomad's client.
func nomadError(conn *connection, err error) error {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.HasBody() {
		return errors.New(strings.TrimSpace(response.Body()))
	}
	return unreachable(*conn.addr, err)
}

// nomadStatus is the HTTP status of an error of Nomad's client, 0 for other errors.
func nomadStatus(err error) int {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) {
		return response.StatusCode()
	}
	return 0
}

// predictJobs completes the id of a job by asking the placement service.
func (c *command) predictJobs(conn *connection) complete.Predictor {
	return complete.PredictFunc(func(args complete.Args) []string {
		nomad, err := c.nomad(conn)
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(c.ctx, predictTime)
		defer cancel()
		jobs, _, err := nomad.Jobs().List((&api.QueryOptions{Prefix: args.Last}).WithContext(ctx))
		if err != nil {
			return nil
		}
		ids := make([]string, len(jobs))
		for i, j := range jobs {
			ids[i] = j.ID
		}
		return ids
	})
}
