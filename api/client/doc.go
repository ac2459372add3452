// Package client is the Go client of the placement service, generated from api/openapi.yaml. Nomad's own API,
// which the service answers too, is spoken with Nomad's client and does not belong here.
package client
