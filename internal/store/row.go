package store

import (
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// NewID returns a fresh id whose text order is the order of creation.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// micros is how a moment is stored: microseconds UTC since 1970. The zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func nullMicros(t *time.Time) sql.NullInt64 {
	if t == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: true}
}

func nullMoment(v sql.NullInt64) *time.Time {
	if !v.Valid {
		return nil
	}
	t := time.UnixMicro(v.Int64).UTC()
	return &t
}

func nullInt(v *int64) sql.NullInt64 {
	if v == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: *v, Valid: true}
}

func intOf(v sql.NullInt64) *int64 {
	if !v.Valid {
		return nil
	}
	return &v.Int64
}

// stamp is a moment as the store will give it back: UTC, whole microseconds.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// text stores JSON as text; nil is the empty text.
func text(raw json.RawMessage) string { return string(raw) }

func raw(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// oneRow turns the answer of a statement that must touch one row into ErrNotFound when it touched none.
func oneRow(n int64, err error, doing string) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if n == 0 {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return nil
}

// mapRows converts rows; no rows are an empty, not a nil, list.
func mapRows[R, T any](rows []R, convert func(R) (T, error)) ([]T, error) {
	out := make([]T, 0, len(rows))
	for _, row := range rows {
		v, err := convert(row)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Limits of a page.
const (
	DefaultPageLimit = 100
	MaxPageLimit     = 1000
)

// Page asks for one page of a list: Limit rows (1–1000, 0 is 100) after Cursor, which is the "next" of the page
// before, or empty for the first.
type Page struct {
	Limit  int
	Cursor string
}

func (p Page) limit() int32 {
	switch {
	case p.Limit <= 0:
		return DefaultPageLimit
	case p.Limit > MaxPageLimit:
		return MaxPageLimit
	}
	return int32(p.Limit)
}

// after reads the cursor of a list ordered by (created, id).
func (p Page) after() (at int64, id string, limit int32, err error) {
	at, parts, err := p.position(1)
	if err != nil {
		return 0, "", 0, err
	}
	return at, parts[0], p.limit(), nil
}

// position reads a cursor of a moment and n texts. The empty cursor stands before every row.
func (p Page) position(n int) (at int64, parts []string, err error) {
	if p.Cursor == "" {
		return -1 << 62, make([]string, n), nil
	}
	var c cursorBody
	body, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	if err != nil || len(c.Key) != n || !storable(c.Key...) {
		return 0, nil, fmt.Errorf("cursor %q: %w", p.Cursor, ErrBadCursor)
	}
	return c.At, c.Key, nil
}

type cursorBody struct {
	At  int64    `json:"a"`
	Key []string `json:"k"`
}

// cursor is the position of a row in a list ordered by a moment and then texts.
func cursor(at int64, key ...string) string {
	body, err := json.Marshal(cursorBody{At: at, Key: key})
	if err != nil {
		panic("store: a cursor of texts cannot fail to encode: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(body)
}

// cut drops the row that was read beyond the page, if it came, and makes the cursor of the next page.
func cut[R any](rows []R, limit int32, at func(R) string) (page []R, next string) {
	if len(rows) <= int(limit) {
		return rows, ""
	}
	rows = rows[:limit]
	return rows, at(rows[limit-1])
}
