// Package auth says who is calling and what they may do: API keys, the identity behind one, and the table of roles.
// Keeping keys (store), and HTTP answers to those who may not, do not belong here.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// Kinds of key. The kind is part of the key's text, so that a person and a secret scanner can tell them apart.
const (
	KindAdmin    = "admin"    // the operator: every tenant
	KindTenant   = "tenant"   // a person or a pipeline of one tenant
	KindNode     = "node"     // a device plugin
	KindEndpoint = "endpoint" // a client of the gateway
)

// kindRoles is the role a new key of each kind gets; a tenant key may be given another.
var kindRoles = map[string]string{
	KindAdmin:    RoleAdmin,
	KindTenant:   RoleMember,
	KindNode:     RoleNode,
	KindEndpoint: RoleEndpoint,
}

const (
	secretBytes   = 32 // 256 random bits
	secretLength  = 43 // of them in base64 without padding
	prefixSecrets = 6  // characters of the secret that are kept readable, to tell keys apart
)

// NewKey makes a key of the kind: its text, which is shown once and never kept, and what is kept of it, which the
// caller completes (Name, Tenant, Endpoints, ExpiresAt, another Role) and stores.
func NewKey(kind string) (plaintext string, key store.Key, err error) {
	role, ok := kindRoles[kind]
	if !ok {
		return "", store.Key{}, fmt.Errorf("unknown kind of key %q: write %q, %q, %q or %q",
			kind, KindAdmin, KindTenant, KindNode, KindEndpoint)
	}
	secret := make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return "", store.Key{}, fmt.Errorf("make key: %w", err)
	}
	plaintext = "hf-" + kind + "-" + base64.RawURLEncoding.EncodeToString(secret)
	return plaintext, store.Key{
		ID: store.NewID(), Kind: kind, Role: role, Hash: Hash(plaintext),
		Prefix:    plaintext[:len(plaintext)-secretLength+prefixSecrets],
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}, nil
}

// Hash is the hex SHA-256 of a key. 256 random bits need neither salt nor a slow hash.
func Hash(plaintext string) string {
	sum := sha256.Sum256([]byte(plaintext))
	return hex.EncodeToString(sum[:])
}

// IsKey reports whether a token is meant to be one of our keys, whether or not it is a good one. A Nomad token is
// a UUID and never is.
func IsKey(token string) bool { return strings.HasPrefix(token, "hf-") }

// kindOf is the kind in a well-formed key.
func kindOf(token string) (kind string, ok bool) {
	rest, ok := strings.CutPrefix(token, "hf-")
	if !ok {
		return "", false
	}
	kind, secret, ok := strings.Cut(rest, "-")
	if _, known := kindRoles[kind]; !ok || !known || len(secret) != secretLength {
		return "", false
	}
	for i := range len(secret) { // in base64, which to decode would take memory
		if c := secret[i]; (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return "", false
		}
	}
	return kind, true
}
