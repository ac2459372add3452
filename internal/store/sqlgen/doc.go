// Package sqlgen is what sqlc makes of internal/store's queries: one function for each, typed. Nothing is written by
// hand here but this comment; meaning, transactions and errors do not belong here but in store.
package sqlgen
