package store

import (
	"context"
	"database/sql"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Ends of a request.
const (
	EndDone          = "done"
	EndClientGone    = "client_gone"
	EndUpstreamCut   = "upstream_cut"
	EndUpstreamError = "upstream_error"
	// EndUpstreamTimeout is a backend that did not answer, or did not go on, in time.
	EndUpstreamTimeout = "upstream_timeout"
	EndRefused         = "refused"
)

// Usage is what one request to the gateway used.
type Usage struct {
	ID               string // the request's id; a second record with it changes nothing
	Tenant           string
	KeyID            string
	EndpointID       string
	Model            string // as the client named it
	ServedModel      string // as the backend was asked; empty when that is the same
	Service          string
	Backend          string // that answered, or was tried last
	Operation        string
	End              string
	Stream           bool
	PromptTokens     *int64 // nil when the backend did not say
	CachedTokens     *int64 // of the prompt; nil when the backend did not say
	CompletionTokens *int64 // nil when the backend did not say
	Estimated        bool   // some of the tokens are the gateway's estimate
	Chunks           int    // events of a stream that gave out tokens
	Status           int    // HTTP status that the client got
	Tries            int    // backends tried
	Tried            string // each of them and how it fared, as JSON; empty when there is nothing to say
	StartedAt        time.Time
	Duration         time.Duration // whole microseconds
	FirstByte        time.Duration // from start to the first byte to the client; 0 when there was none
}

// usageColumns is the order in which appendUsage gives a record.
const usageColumns = "id, tenant, key_id, endpoint_id, model, service, backend, operation, ending, stream, " +
	"prompt_tokens, completion_tokens, status, tries, started_at, duration_us, first_byte_us, " +
	"served_model, cached_tokens, estimated, chunks, tried"

// usageBatch keeps one statement well below SQLite's 32,766 parameters.
const usageBatch = 500

// Texts are cleaned: the model is whatever a client asked for, and one bad name must not lose a batch.
func appendUsage(args []any, u *Usage) []any {
	return append(args,
		clean(u.ID), clean(u.Tenant), clean(u.KeyID), clean(u.EndpointID), clean(u.Model), clean(u.Service),
		clean(u.Backend), clean(u.Operation), clean(u.End), u.Stream,
		nullInt(u.PromptTokens), nullInt(u.CompletionTokens), int64(u.Status), int64(u.Tries),
		micros(u.StartedAt), u.Duration.Microseconds(), u.FirstByte.Microseconds(),
		clean(u.ServedModel), nullInt(u.CachedTokens), u.Estimated, int64(u.Chunks), clean(u.Tried))
}

// AddUsage keeps the records, all or none; those whose id is known already change nothing.
func (s *Store) AddUsage(ctx context.Context, records []Usage) error {
	if len(records) == 0 {
		return nil
	}
	// In one order for everyone, so that two batches with the same ids never wait for each other.
	sorted := slices.Clone(records)
	slices.SortFunc(sorted, func(a, b Usage) int { return strings.Compare(a.ID, b.ID) })
	err := s.inRawTx(ctx, func(tx *sql.Tx) error {
		if _, columns := s.dialect.(postgresDialect); columns {
			return insertUsageColumns(ctx, tx, sorted)
		}
		return insertUsageRows(ctx, tx, sorted, false)
	})
	if err != nil {
		return fmt.Errorf("add %d usage records: %w", len(records), err)
	}
	return nil
}

// usageWidth is how many values a row of usage has.
var usageWidth = strings.Count(usageColumns, ",") + 1

// usageRows is how many of the rows go into one statement: a whole batch or a power of two of them, so that there are
// few statements and a database knows them all.
func usageRows(left int) int {
	if left >= usageBatch {
		return usageBatch
	}
	return 1 << (bits.Len(uint(left)) - 1)
}

// usageInserts are the statements, by a usageText each.
var usageInserts sync.Map

// usageText says which statement is meant. PostgreSQL knows parameters with a number only. SQLite knows both, but goes through
// all numbered ones for each of them, so that it would take a statement of 500 rows most of a second to be read.
type usageText struct {
	rows     int
	numbered bool
}

// String is written by hand because the number of rows is not known to sqlc.
func (t usageText) String() string {
	rows := t.rows
	query := append(make([]byte, 0, 400+rows*usageWidth*7), "INSERT INTO usage_records ("+usageColumns+") VALUES "...)
	for n := range rows * usageWidth {
		switch {
		case n%usageWidth > 0:
			query = append(query, ',')
		case n > 0:
			query = append(query, "),("...)
		default:
			query = append(query, '(')
		}
		if !t.numbered {
			query = append(query, '?')
			continue
		}
		query = strconv.AppendInt(append(query, '$'), int64(n+1), 10)
	}
	return string(append(query, ") ON CONFLICT (id) DO NOTHING"...))
}

// insertUsageRows inserts records row by row of one statement, some hundred at a time.
func insertUsageRows(ctx context.Context, tx *sql.Tx, records []Usage, numbered bool) error {
	for rest := records; len(rest) > 0; {
		n := usageRows(len(rest))
		if err := insertUsage(ctx, tx, rest[:n], numbered); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func insertUsage(ctx context.Context, tx *sql.Tx, batch []Usage, numbered bool) error {
	args := make([]any, 0, len(batch)*usageWidth)
	for i := range batch {
		args = appendUsage(args, &batch[i])
	}
	text := usageText{len(batch), numbered}
	query, ok := usageInserts.Load(text)
	if !ok {
		query, _ = usageInserts.LoadOrStore(text, text.String())
	}
	_, err := tx.ExecContext(ctx, query.(string), args...) //nolint:forcetypeassert // nothing else is stored there
	return err
}

// ListUsage lists the records that started in [from, to) of a tenant, or of everyone when tenant is empty, newest
// first. A zero to is the end of time.
func (s *Store) ListUsage(ctx context.Context, tenant string, from, to time.Time, page Page) (out []Usage, next string, err error) {
	before, beforeID := end(to), "" // no id is below the empty text: rows at the end itself are out
	if page.Cursor != "" {
		at, key, err := page.position(1)
		if err != nil {
			return nil, "", fmt.Errorf("list usage: %w", err)
		}
		before, beforeID = at, key[0]
	}
	limit := page.limit()
	rows, err := s.reader().ListUsage(ctx, sqlgen.ListUsageParams{
		FromStarted: micros(from), BeforeStarted: before, BeforeID: beforeID,
		AnyTenant: tenant == "", Tenant: tenant, MaxRows: limit + 1,
	})
	if err != nil {
		return nil, "", fmt.Errorf("list usage: %w", err)
	}
	rows, next = cut(rows, limit, func(u sqlgen.UsageRecord) string { return cursor(u.StartedAt, u.ID) })
	out, err = mapRows(rows, usageOf)
	return out, next, err
}

func end(to time.Time) int64 {
	if to.IsZero() {
		return 1 << 62
	}
	return micros(to)
}

func usageOf(row sqlgen.UsageRecord) (Usage, error) {
	return Usage{
		ID: row.ID, Tenant: row.Tenant, KeyID: row.KeyID, EndpointID: row.EndpointID, Model: row.Model,
		Service: row.Service, Backend: row.Backend, Operation: row.Operation, End: row.Ending, Stream: row.Stream,
		PromptTokens: intOf(row.PromptTokens), CompletionTokens: intOf(row.CompletionTokens),
		Status: int(row.Status), Tries: int(row.Tries), StartedAt: moment(row.StartedAt),
		ServedModel: row.ServedModel, CachedTokens: intOf(row.CachedTokens), Estimated: row.Estimated,
		Chunks: int(row.Chunks), Tried: row.Tried,
		Duration:  time.Duration(row.DurationUs) * time.Microsecond,
		FirstByte: time.Duration(row.FirstByteUs) * time.Microsecond,
	}, nil
}
