// Package model has the Promela models of the commit protocol, and a test that
// has them checked. There is no Go code to import.
package model
