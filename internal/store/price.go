package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Price is what a model costs, in billionths of a unit of money: the price of a million tokens in thousandths of it.
type Price struct {
	Model           string // as clients name it
	PromptNanos     int64  // a token of the prompt
	CachedNanos     int64  // a token of the prompt that the engine had in its cache
	CompletionNanos int64  // a token of the answer
	RequestNanos    int64  // a request
	UpdatedAt       time.Time
}

// SetPrice stores the price in place of the one that the model has.
func (s *Store) SetPrice(ctx context.Context, p Price) (Price, error) {
	p.UpdatedAt = s.now()
	err := checkNames(p.Model)
	if err == nil && (p.Model == "" || min(p.PromptNanos, p.CachedNanos, p.CompletionNanos, p.RequestNanos) < 0) {
		err = fmt.Errorf("a price without a model or below 0 is %w", ErrInvalid)
	}
	if err != nil {
		return Price{}, fmt.Errorf("set price: %w", err)
	}
	err = s.inTx(ctx, func(q *sqlgen.Queries) error {
		if _, err := bump(ctx, q, LimitRevision); err != nil {
			return err
		}
		if err := q.UpsertPrice(ctx, sqlgen.UpsertPriceParams{
			Model: p.Model, PromptNanos: p.PromptNanos, CachedNanos: p.CachedNanos, CompletionNanos: p.CompletionNanos,
			RequestNanos: p.RequestNanos, UpdatedAt: micros(p.UpdatedAt),
		}); err != nil {
			return err
		}
		return s.note(ctx, q, "", "price.set", p.Model, p)
	})
	if err != nil {
		return Price{}, fmt.Errorf("set price of %s: %w", p.Model, err)
	}
	return p, nil
}

// DeletePrice deletes a model's price. ErrNotFound when it has none.
func (s *Store) DeletePrice(ctx context.Context, model string) error {
	if !storable(model) {
		return fmt.Errorf("price: %w", ErrNotFound)
	}
	return s.inTx(ctx, func(q *sqlgen.Queries) error {
		n, err := q.DeletePrice(ctx, model)
		if err := oneRow(n, err, "delete price of "+model); err != nil {
			return err
		}
		_, err = bump(ctx, q, LimitRevision)
		return errors.Join(err, s.note(ctx, q, "", "price.delete", model, nil))
	})
}

// ListPrices lists prices by model.
func (s *Store) ListPrices(ctx context.Context, page Page) (out []Price, next string, err error) {
	_, after, err := page.position(1)
	if err != nil {
		return nil, "", fmt.Errorf("list prices: %w", err)
	}
	rows, err := s.reader().ListPrices(ctx, sqlgen.ListPricesParams{AfterModel: after[0], MaxRows: page.limit() + 1})
	if err != nil {
		return nil, "", fmt.Errorf("list prices: %w", err)
	}
	rows, next = cut(rows, page.limit(), func(p sqlgen.Price) string { return cursor(0, p.Model) })
	out, err = mapRows(rows, func(p sqlgen.Price) (Price, error) {
		return Price{
			Model: p.Model, PromptNanos: p.PromptNanos, CachedNanos: p.CachedNanos, CompletionNanos: p.CompletionNanos,
			RequestNanos: p.RequestNanos, UpdatedAt: moment(p.UpdatedAt),
		}, nil
	})
	return out, next, err
}
