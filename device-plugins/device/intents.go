package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
)

const (
	intentWait  = 30 * time.Second // how long the placement service holds a poll open
	maxBackOff  = time.Minute
	maxAnswer   = 1 << 20
	answerLimit = 10 * time.Second // for a call that is not a poll
)

// An intent is what the placement service wants a card to be.
type intent struct {
	ID       string     `json:"id"`
	CardUUID string     `json:"card_uuid"`
	Form     accel.Form `json:"form"`
	State    string     `json:"state"` // wanted or claimed
	Version  int64      `json:"version"`
}

// An intentClient asks the placement service, over a connection that the node opens.
type intentClient struct {
	base, token string
	http        *http.Client
}

func newIntentClient(server, token string) *intentClient {
	return &intentClient{base: strings.TrimSuffix(server, "/") + "/api/v1/intents", token: token, http: &http.Client{}}
}

// errLost says that another party won the claim, or that the intent is no longer open.
var errLost = errors.New("the intent is not ours to carry out")

func (c *intentClient) call(ctx context.Context, method, path string, body, answer any) error {
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode intent call: %w", err)
		}
		reader = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, reader)
	if err != nil {
		return fmt.Errorf("make intent call: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("call placement service at %s: %w: check server in the plugin's config where this stays", req.URL.Host, cause(err))
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is written
	switch {
	case resp.StatusCode == http.StatusConflict, resp.StatusCode == http.StatusNotFound && method == http.MethodPost:
		return errLost
	case resp.StatusCode == http.StatusUnauthorized && c.token == "":
		return fmt.Errorf("call placement service: it answered %s: write token, what \"heteroflow key create -kind node NAME\" prints, beside server in the plugin's config", resp.Status)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("call placement service: it answered %s: check token in the plugin's config: it is a key of the kind node", resp.Status)
	case resp.StatusCode >= 300:
		return fmt.Errorf("call placement service: it answered %s", resp.Status)
	case answer == nil:
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("read answer of placement service: %w", err)
	}
	return nil
}

// cause is the error without the address, which names every card of the node.
func cause(err error) error {
	var web *url.Error
	if errors.As(err, &web) {
		return web.Err
	}
	return err
}

// poll waits for open intents about the cards. None after the wait is a normal answer.
func (c *intentClient) poll(ctx context.Context, cards []string) ([]intent, error) {
	ctx, cancel := context.WithTimeout(ctx, intentWait+answerLimit)
	defer cancel()
	var answer struct {
		Items []intent `json:"items"`
	}
	q := url.Values{"card": cards, "wait": {intentWait.String()}}
	err := c.call(ctx, http.MethodGet, "?"+q.Encode(), nil, &answer)
	return answer.Items, err
}

func (c *intentClient) claim(ctx context.Context, i intent) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return c.call(ctx, http.MethodPost, "/"+url.PathEscape(i.ID)+"/claim", map[string]int64{"version": i.Version}, nil)
}

// report tells the outcome: done when reason is empty.
func (c *intentClient) report(ctx context.Context, i intent, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	body := map[string]string{"state": "done"}
	if reason != "" {
		body = map[string]string{"state": "failed", "reason": reason}
	}
	err := c.call(ctx, http.MethodPost, "/"+url.PathEscape(i.ID)+"/report", body, nil)
	if errors.Is(err, errLost) {
		return nil // it was settled without us; what is true is in the fingerprint
	}
	return err
}

// followIntents carries out intents until ctx ends. The placement service may be away for any time.
func (p *Plugin) followIntents(ctx context.Context, c *intentClient) {
	wait := p.retry
	for ctx.Err() == nil {
		cards, changed := p.switchable()
		if len(cards) == 0 {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		intents, err := p.pollWhile(ctx, c, cards, changed)
		open := false
		for _, i := range intents {
			settled, handleErr := p.carryOut(ctx, c, i)
			open = open || !settled
			err = errors.Join(err, handleErr)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			p.log.Warn("intents cannot be followed, will try again", "in", wait.String(), "error", err)
			clock.Sleep(ctx, clock.System(), wait)
			wait = min(2*wait, maxBackOff)
			continue
		case open: // the service answers at once while an intent is open
			clock.Sleep(ctx, clock.System(), p.retry)
		}
		wait = p.retry
	}
}

// pollWhile polls as long as the cards are these: the service holds a poll open for as long as half a minute, and a card that has
// come meanwhile is not asked for in it. A poll that is given up for that brings nothing, and no error.
func (p *Plugin) pollWhile(ctx context.Context, c *intentClient, cards []string, changed <-chan struct{}) ([]intent, error) {
	polling, giveUp := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-polling.Done():
				return
			case <-changed:
			}
			var now []string
			if now, changed = p.switchable(); !slices.Equal(now, cards) {
				giveUp()
				return
			}
		}
	}()
	intents, err := c.poll(polling, cards)
	givenUp := polling.Err() != nil
	giveUp()
	<-watched
	if givenUp && ctx.Err() == nil {
		return nil, nil
	}
	return intents, err
}

// switchable lists the cards whose form an intent may change.
func (p *Plugin) switchable() ([]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var uuids []string
	for _, o := range p.offers() {
		if o.policy == accel.PolicyAuto {
			uuids = append(uuids, o.UUID)
		}
	}
	return uuids, p.changed
}

// carryOut does one intent as far as it can be done now. settled is false when it must be looked at again.
func (p *Plugin) carryOut(ctx context.Context, c *intentClient, i intent) (settled bool, err error) {
	o, known := p.offered(i.CardUUID)
	if !known {
		return false, nil
	}
	reason := impossible(o, i.Form)
	if reason == "" && o.Form != i.Form {
		if why := p.inUse(ctx, o); why != "" {
			p.log.Debug("card is in use, its form stays for now", "device_id", o.UUID, "why", why)
			return false, nil
		}
	}
	if i.State != "claimed" {
		if err := c.claim(ctx, i); err != nil {
			if errors.Is(err, errLost) {
				return false, nil
			}
			return false, err
		}
	}
	if reason == "" && o.Form != i.Form {
		if err := p.switchForm(o, i.Form); err != nil {
			reason = err.Error()
		}
	}
	if reason != "" {
		p.log.Warn("form of a card is not switched", "device_id", o.UUID, "form", i.Form, "reason", reason)
	}
	return true, c.report(ctx, i, reason)
}

func (p *Plugin) offered(uuid string) (offer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	offers := p.offers()
	n := slices.IndexFunc(offers, func(o offer) bool { return o.UUID == uuid })
	if n < 0 {
		return offer{}, false
	}
	return offers[n], true
}

// impossible says why a card can never take a form, empty when it can.
func impossible(o offer, form accel.Form) string {
	switch {
	case form != accel.Whole && form != accel.Shared:
		return fmt.Sprintf("form %q is not one this plugin can switch to: whole and shared are", form)
	case o.policy != accel.PolicyAuto && o.Form != form:
		return "the form of the card is fixed by the plugin's config"
	case form == accel.Shared && o.Slices(o.sliceMiB) == 0:
		return reasonNoSize
	}
	return ""
}

// inUse says what uses the card, empty when nothing does. What cannot be told counts as use: a form is switched only
// when it is certain that nobody is hurt.
func (p *Plugin) inUse(ctx context.Context, o offer) string {
	if why := p.held(o.UUID); why != "" {
		return why
	}
	for _, s := range p.sourcesOf([]accel.Card{o.Card}) {
		lister, ok := s.source.Detector.(ProcessLister)
		if !ok {
			return "its processes cannot be listed"
		}
		processes, err := guarded(ctx, &s.source.listing, p.limit, func(ctx context.Context) (map[string][]int, error) {
			return lister.Processes(ctx, s.cards)
		})
		if err != nil {
			return "its processes cannot be listed: " + err.Error()
		}
		own, known := processes[o.UUID]
		if !known {
			return "its processes cannot be listed"
		}
		if len(own) > 0 {
			return fmt.Sprintf("process %d runs on it", own[0])
		}
	}
	return ""
}

// held says whether a task was given the card: a lease of the driver, or a reservation so young that its task may not
// have one yet.
func (p *Plugin) held(uuid string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heldLocked(uuid)
}

func (p *Plugin) heldLocked(uuid string) string {
	p.tidy()
	reserved, err := p.marks.Fresh(reserveGrace)
	if err != nil {
		return "the reservations handed out cannot be read: " + err.Error()
	}
	if reserved[uuid] {
		return "it was reserved a moment ago"
	}
	leases, err := grant.Leases(p.leasesDir())
	if err != nil {
		return "the leases of running tasks cannot be read: " + err.Error()
	}
	for _, l := range leases {
		if slices.Contains(l.Cards, uuid) {
			return "task " + l.TaskID + " has it"
		}
	}
	shares, err := grant.Shares(filepath.Join(p.set.StateDir, "shares"))
	if err != nil {
		return "the shares that the driver made cannot be read: " + err.Error()
	}
	for _, s := range shares {
		if s.Card == uuid {
			return "a share of task " + s.TaskID + " is on it still"
		}
	}
	return ""
}

// leasesDir is where leases and marks stand. The lock is held.
func (p *Plugin) leasesDir() string { return filepath.Join(p.set.StateDir, "leases") }

// switchForm changes the form, unless the card was taken since it was looked at.
func (p *Plugin) switchForm(o offer, form accel.Form) error {
	p.mu.Lock() // Reserve takes it too: between the look and the switch no card is handed out
	defer p.mu.Unlock()
	if why := p.heldLocked(o.UUID); why != "" {
		return errors.New(why)
	}
	if err := p.forms.choose(o.UUID, form); err != nil {
		return err
	}
	p.log.Info("form of a card is switched", "device_id", o.UUID, "from", o.Form, "to", form)
	p.notify()
	return nil
}
