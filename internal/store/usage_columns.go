package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// usageArrays are a batch of records column by column, in the order of usageColumns.
func usageArrays(records []Usage) []any {
	n := len(records)
	texts := func(of func(*Usage) string) []string {
		out := make([]string, n)
		for i := range records {
			out[i] = clean(of(&records[i]))
		}
		return out
	}
	numbers := func(of func(*Usage) int64) []int64 {
		out := make([]int64, n)
		for i := range records {
			out[i] = of(&records[i])
		}
		return out
	}
	known := func(of func(*Usage) *int64) []*int64 {
		out := make([]*int64, n)
		for i := range records {
			out[i] = of(&records[i])
		}
		return out
	}
	flags := func(of func(*Usage) bool) []bool {
		out := make([]bool, n)
		for i := range records {
			out[i] = of(&records[i])
		}
		return out
	}
	return []any{
		texts(func(u *Usage) string { return u.ID }), texts(func(u *Usage) string { return u.Tenant }),
		texts(func(u *Usage) string { return u.KeyID }), texts(func(u *Usage) string { return u.EndpointID }),
		texts(func(u *Usage) string { return u.Model }), texts(func(u *Usage) string { return u.Service }),
		texts(func(u *Usage) string { return u.Backend }), texts(func(u *Usage) string { return u.Operation }),
		texts(func(u *Usage) string { return u.End }), flags(func(u *Usage) bool { return u.Stream }),
		known(func(u *Usage) *int64 { return u.PromptTokens }), known(func(u *Usage) *int64 { return u.CompletionTokens }),
		numbers(func(u *Usage) int64 { return int64(u.Status) }), numbers(func(u *Usage) int64 { return int64(u.Tries) }),
		numbers(func(u *Usage) int64 { return micros(u.StartedAt) }), numbers(func(u *Usage) int64 { return u.Duration.Microseconds() }),
		numbers(func(u *Usage) int64 { return u.FirstByte.Microseconds() }), texts(func(u *Usage) string { return u.ServedModel }),
		known(func(u *Usage) *int64 { return u.CachedTokens }), flags(func(u *Usage) bool { return u.Estimated }),
		numbers(func(u *Usage) int64 { return int64(u.Chunks) }), texts(func(u *Usage) string { return u.Tried }),
	}
}

// usageByColumn gives PostgreSQL a whole batch as one array for each column: it is one statement that the server knows,
// however many rows there are, and reads a value for each column in place of one for each field.
var usageByColumn = func() string {
	var arrays []string
	for i, column := range usageArrays(nil) {
		kind := map[string]string{"[]string": "text", "[]bool": "boolean"}[fmt.Sprintf("%T", column)]
		if kind == "" {
			kind = "bigint"
		}
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, kind))
	}
	return "INSERT INTO usage_records (" + usageColumns + ") SELECT * FROM unnest(" + strings.Join(arrays, ", ") + ") ON CONFLICT (id) DO NOTHING"
}()

// insertUsageColumns inserts records column by column, in their order.
func insertUsageColumns(ctx context.Context, tx *sql.Tx, records []Usage) error {
	_, err := tx.ExecContext(ctx, usageByColumn, usageArrays(records)...)
	return err
}
