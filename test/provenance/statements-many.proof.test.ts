/** The statements of the gate, in the numbers of proofs. */
import './statements.test.ts'
