package barrier

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Arrival is what a member says of itself.
type Arrival struct {
	Grant   string `json:"grant"`
	AllocID string `json:"alloc_id"`
	Visit   string `json:"visit"` // made by Meet
	Index   int    `json:"index"` // of the allocation in its group
	NodeID  string `json:"node_id,omitempty"`
	Address string `json:"address,omitempty"`
	Port    int    `json:"port,omitempty"`
	Vendor  string `json:"vendor,omitempty"`
	Cards   []Card `json:"cards"`
}

// Card is one card of the member, in the order in which its processes take them.
type Card struct {
	UUID    string `json:"uuid"`
	Index   int    `json:"index"`
	Address string `json:"address,omitempty"` // of its own network interface, which Ascend's NPUs have
}

// Start is what a member is told when all have come.
type Start struct {
	Members int               `json:"members"`
	Attempt int               `json:"attempt"` // counts starts of the gang from 1
	Rank    int               `json:"rank"`    // of the member, from 0
	Env     map[string]string `json:"env"`
	Files   map[string]string `json:"files"` // by path below the task's local folder
}

// answer is what the placement service says.
type answer struct {
	Start
	State   string `json:"state"`
	Present int    `json:"present"`
	Reason  string `json:"reason"`
	Detail  string `json:"detail"` // of a problem
}

// The states of an answer.
const (
	waiting = "waiting"
	started = "started"
	givenUp = "given_up"
	stopped = "stopped"
)

const (
	hold        = 20 * time.Second // how long the service may hold a call open
	answerLimit = 10 * time.Second // for the rest of it
	maxAnswer   = 8 << 20          // host files of gangs of thousands
	shortest    = 250 * time.Millisecond
	longest     = 5 * time.Second // pauses after a call that failed
)

// Client asks the placement service, over connections that the node opens. It is safe for concurrent use.
type Client struct {
	Server string // address of the placement service
	Token  string // a key of the kind node; empty where the service needs none
	HTTP   *http.Client
	Clock  clock.Clock
}

// LateError says that the gang did not come together in time. It passes by itself when the missing members come.
type LateError struct{ Reason string }

func (e *LateError) Error() string { return "the gang did not start: " + e.Reason }

// Temporary marks it for the task's restart policy.
func (e *LateError) Temporary() bool { return true }

// StoppedError says that the allocation is not to run any more.
type StoppedError struct{ Reason string }

func (e *StoppedError) Error() string { return "the gang does not start: " + e.Reason }

// Meet waits until all members have come, at most for limit, and tells on the way what it waits for. It goes on while the
// placement service is away. The errors to tell apart are *LateError and *StoppedError.
func (c *Client) Meet(ctx context.Context, a Arrival, limit time.Duration, event func(string)) (Start, error) {
	a.Visit = rand.Text()
	end := c.Clock.Now().Add(limit + answerLimit) // the service, which knows when the first came, is to say it first
	told, pause := "", shortest
	tell := func(text string) {
		if text != told {
			told = text
			event(text)
		}
	}
	tell("Waiting for the other members of the gang")
	for {
		got, err := c.ask(ctx, a)
		switch {
		case ctx.Err() != nil:
			return Start{}, fmt.Errorf("wait for the gang: %w", ctx.Err())
		case errors.As(err, new(*refusedError)):
			return Start{}, err
		case err != nil:
			tell("Waiting for the gang: " + err.Error())
		default:
			switch got.State {
			case started:
				event(fmt.Sprintf("The gang starts: rank %d of %d members, start %d", got.Rank, got.Members, got.Attempt))
				return got.Start, nil
			case givenUp:
				return Start{}, &LateError{Reason: got.Reason + ": see why the others do not come with nomad job status, or write a longer start_timeout"}
			case stopped:
				return Start{}, &StoppedError{Reason: got.Reason}
			case waiting:
				tell("Waiting for the gang: " + got.Reason)
			default:
				return Start{}, fmt.Errorf("the placement service answers with state %q: upgrade heteroflow-driver", got.State)
			}
			pause = shortest
		}
		if !c.Clock.Now().Before(end) {
			return Start{}, &LateError{Reason: fmt.Sprintf("it took longer than start_timeout = %q: %s", limit, strings.ToLower(told[:1])+told[1:])}
		}
		if err != nil {
			if !clock.Sleep(ctx, c.Clock, pause) {
				return Start{}, fmt.Errorf("wait for the gang: %w", ctx.Err())
			}
			pause = min(2*pause, longest)
		}
	}
}

// refusedError is an answer that asking again does not change.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (c *Client) ask(ctx context.Context, a Arrival) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, hold+answerLimit)
	defer cancel()
	body, err := json.Marshal(struct {
		Arrival
		Wait string `json:"wait"`
	}{a, hold.String()})
	if err != nil {
		return answer{}, fmt.Errorf("encode arrival: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.Server, "/")+"/api/v1/gangs/meet", bytes.NewReader(body))
	if err != nil {
		return answer{}, &refusedError{fmt.Sprintf("server in the plugin's config is no address: %v", err)}
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		var web *url.Error
		if errors.As(err, &web) {
			err = web.Err
		}
		return answer{}, fmt.Errorf("the placement service at %s cannot be reached: %w", req.URL.Host, err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is written
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("read the placement service's answer: %w", err)
	}
	return c.read(resp, text)
}

func (c *Client) read(resp *http.Response, text []byte) (answer, error) {
	var out answer
	err := json.Unmarshal(text, &out)
	switch {
	case resp.StatusCode == http.StatusUnauthorized && c.Token == "":
		return out, &refusedError{`the placement service asks for a key: write token, what "heteroflow key create -kind node NAME" prints, beside server in the plugin's config`}
	case resp.StatusCode == http.StatusUnauthorized:
		return out, &refusedError{"the placement service does not accept token of the plugin's config: it is a key of the kind node"}
	case resp.StatusCode == http.StatusNotFound && out.Detail == "" || resp.StatusCode == http.StatusMethodNotAllowed:
		return out, &refusedError{"what answers at server of the plugin's config knows no gangs: upgrade the placement service, or check the address"}
	case resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests:
		return out, &refusedError{fmt.Sprintf("the placement service refuses the member: %s", orStatus(out.Detail, resp))}
	case resp.StatusCode >= 300:
		return out, fmt.Errorf("the placement service answered: %s", orStatus(out.Detail, resp))
	case err != nil:
		return out, fmt.Errorf("read the placement service's answer: %w", err)
	}
	return out, nil
}

func orStatus(detail string, resp *http.Response) string {
	if detail == "" {
		return resp.Status
	}
	return detail
}
