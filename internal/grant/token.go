package grant

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Grant is what the placement service decided for one task. It says what the task may use; which cards that is
// on a node follows from the reservations, so that a grant stays the same when Nomad places the task anew.
type Grant struct {
	ID         string         `json:"id"`
	Tenant     string         `json:"tenant"`
	Namespace  string         `json:"namespace"`
	Job        string         `json:"job"`
	Group      string         `json:"group"`
	Task       string         `json:"task"`
	Count      int            `json:"count"`                 // cards
	MemoryMiB  uint64         `json:"memory_mib,omitempty"`  // per card; 0 for whole cards
	ComputePct int            `json:"compute_pct,omitempty"` // 10–100; 0 is no cap
	QoS        accel.QoS      `json:"qos"`
	Vendors    []accel.Vendor `json:"vendors,omitempty"` // brands the ask accepts; any when empty
	// Children says which jobs that Nomad makes of this one may use the grant too; empty for none. Anybody who may submit
	// jobs can write a job whose name looks like that of a child.
	Children Children `json:"children,omitempty"`
	Gang     *Gang    `json:"gang,omitempty"` // nil for a task that starts by itself
}

// Children are the jobs that Nomad makes of another one.
type Children string

// The kinds of children, by what Nomad puts behind the job's name.
const (
	Dispatched Children = "dispatch" // of a parameterized job
	Periodic   Children = "periodic"
)

// Covers reports whether the grant is for the job of this name: its own, or a child of its kind.
func (g Grant) Covers(job string) bool {
	return job == g.Job || g.Children != "" && strings.HasPrefix(job, g.Job+"/"+string(g.Children)+"-")
}

// Why no grant is accepted, or not this one.
var (
	ErrSignature = errors.New("grant is not signed by this cluster's placement service")
	ErrNoKey     = errors.New("grant cannot be checked: this node's plugin config has no grant_public_key: write the text that the placement service shows as public_key at /api/v1/info")
)

const tokenPrefix = "hfg1."

// NewKey makes a signing key.
func NewKey() (ed25519.PrivateKey, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return private, err
}

// Sign turns the grant into the token that goes into the task's config. The same grant and key always give the
// same token.
func (g Grant) Sign(key ed25519.PrivateKey) (string, error) {
	body, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("encode grant: %w", err)
	}
	enc := base64.RawURLEncoding
	return tokenPrefix + enc.EncodeToString(body) + "." + enc.EncodeToString(ed25519.Sign(key, body)), nil
}

// Parse reads a token and checks its signature: ErrSignature when it is not the key's, ErrNoKey without a key. What
// nobody can check is never taken, or every job could write what it may use.
func Parse(token string, key ed25519.PublicKey) (Grant, error) {
	if len(key) == 0 {
		return Grant{}, ErrNoKey
	}
	body, sig, err := open(token)
	if err != nil {
		return Grant{}, err
	}
	if !ed25519.Verify(key, body, sig) {
		return Grant{}, ErrSignature
	}
	var g Grant
	if err := json.Unmarshal(body, &g); err != nil {
		return Grant{}, fmt.Errorf("decode grant: %w", err)
	}
	return g, nil
}

// IsToken reports whether a text has the form of a grant, whoever signed it.
func IsToken(text string) bool {
	_, _, err := open(text)
	return err == nil
}

// open takes a token apart into what is signed and the signature.
func open(token string) (body, sig []byte, err error) {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return nil, nil, fmt.Errorf("grant does not start with %q: send the job to the placement service, which writes it", tokenPrefix)
	}
	bodyText, sigText, ok := strings.Cut(rest, ".")
	if !ok {
		return nil, nil, errors.New("grant is cut short: it has no signature")
	}
	if body, err = base64.RawURLEncoding.DecodeString(bodyText); err != nil {
		return nil, nil, fmt.Errorf("decode grant: %w", err)
	}
	if sig, err = base64.RawURLEncoding.DecodeString(sigText); err != nil {
		return nil, nil, fmt.Errorf("decode grant signature: %w", err)
	}
	return body, sig, nil
}
