/** Faults of a server's certificate, by Node's codes of errors (`tls`, OpenSSL). */
export const certificateFault = /CERT|SELF_SIGNED|UNABLE_TO_(?:GET_ISSUER|VERIFY)|ALTNAME|SSL|TLS|EPROTO/
