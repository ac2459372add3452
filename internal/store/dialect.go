package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pressly/goose/v3"
)

// dialect is what only one engine can say, with the other engine's answer beside it.
type dialect interface {
	name() string
	// migrations are the engine's name for goose and its lock around a migration.
	migrations() (goose.Dialect, goose.ProviderOption)
	// relaxed is how a transaction is told that it may be on disk a moment after its end.
	relaxed() relaxation
	// pipelines reports whether statements can be sent together, before the answer to the first.
	pipelines() bool
	// flush brings to disk what was committed before.
	flush(ctx context.Context, s *Store) error
	// again reports whether a transaction that ended in err lost a race and may simply be run once more.
	again(err error) bool
}

// target is a parsed url of a database.
type target struct {
	open   func(ctx context.Context, s *Store) error
	secret []string // what must not appear in an error, in each form it may be written
}

const urlHelp = `write "postgres://user@host:5432/name", "sqlite:///var/lib/heteroflow/state.db" or the path of a SQLite file`

func parseURL(raw string) (target, error) {
	scheme, rest, hasScheme := strings.Cut(raw, "://")
	switch {
	case raw == "":
		return target{}, fmt.Errorf("no database url given: %s", urlHelp)
	case !hasScheme:
		return sqliteTarget(raw)
	case scheme == "sqlite":
		return sqliteTarget(rest)
	case scheme == "postgres", scheme == "postgresql":
		return postgresTarget(raw)
	}
	return target{}, fmt.Errorf("unknown kind of database %q: %s", scheme, urlHelp)
}

// secretsOf lists the password of a url as written and as meant, so that both can be taken out of errors.
func secretsOf(raw string) []string {
	var found []string
	if u, err := url.Parse(raw); err == nil {
		if p, ok := u.User.Password(); ok {
			found = append(found, p, url.QueryEscape(p), url.PathEscape(p))
		}
		found = append(found, u.Query().Get("password"), u.Query().Get("sslpassword"))
	}
	// A url that does not parse is the likeliest to be quoted whole: take what stands between the first colon
	// after the scheme and the last @.
	_, rest, _ := strings.Cut(raw, "://")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		if _, p, ok := strings.Cut(rest[:at], ":"); ok {
			found = append(found, p)
		}
	}
	return found
}

// redact takes the url's password out of an error's text. It keeps the error as it is when there is none in it.
func (t target) redact(err error) error {
	if err == nil {
		return nil
	}
	clean := err.Error()
	for _, secret := range t.secret {
		if secret != "" {
			clean = strings.ReplaceAll(clean, secret, "xxxxx")
		}
	}
	if clean == err.Error() {
		return err
	}
	return errors.New(clean)
}

// closeAll closes pools after a failed open and keeps the reason first.
func closeAll(err error, pools ...*sql.DB) error {
	for _, p := range pools {
		err = errors.Join(err, p.Close())
	}
	return err
}
