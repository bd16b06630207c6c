"""Texts with a secret, and the part of each that nobody may see."""

# Put together here, so that scanners of secrets do not take them for real ones.
A40, HEX = "aB3" * 13 + "x", "0a1b2c3d" * 4
S = "hunter2zz"
#: forms that were shown in clear at first
MISSED = [
    (f"DB_PASS={S}", S), (f"pass={S}", S), (f"EMAIL_HOST_PASS: {S}", S), (f"passwords=['{S}']", S), (f"tokens: {S}", S),
    (f"ssh_key={S}", S), (f"master_key={S}", S), (f"app_key: '{S}'", S), (f"https://x/?sig={S}&se=2026", S),
    (f"X-Amz-Signature={S}", S), (f"creds={S}", S), (f"login_code={S}", S), (f"verification_code: {S}", S),
    (f"비번: {S}", S), (f"주민번호={S}", S), (f"인증번호: {S}", S), (f"토큰={S}", S), (f"사용자비밀번호: {S}", S),
    (f"mysql://app:p@{S}@db/x", S), (f"mysql://app:hun/{S}@db", S), (f"https://kim:a@b@{S}@h.test/x", S),
    (f"Command '['mysql', '--password', '{S}']' returned 1", S), (f"mysql --password {S} shop", S),
    (f"('password', '{S}')", S), (f"<password>{S}</password>", S), (f'<ns:apiKey id="1">{S}</ns:apiKey>', S),
]  # fmt: skip
SECRETS = [
    (f"password={S}", S), (f"password: {S}", S), (f'"password": "{S}"', S), (f"{{'passwd': '{S}'}}", S),
    (f"login(user='kim', pwd='{S}')", S), (f"dbPassword={S}", S), (f"PGPASSWORD={S}", S), (f"x-api-key: {S}", S),
    (f"apiKey='{S}'", S), (f"client_secret={S}&grant=code", S), (f"https://x.test/?access_token={S}&b=1", S),
    (f'{{\\"password\\": \\"{S}\\"}}', S), (f"password = {S}", S), (f"passphrase => '{S}'", S),
    (f"sessionid={S}; path=/", S), (f"csrfmiddlewaretoken={S}", S), (f"credentials=('kim', '{S}')", S),
    (f"Cookie: a=1; sid={S}", S), (f"Set-Cookie: x={S}; HttpOnly", S), (f"Authorization: Negotiate {S}", S),
    ("Authorization: Basic a2ltOmh1bnRlcjI=", "a2ltOmh1bnRlcjI"), (f"sent Bearer {A40}", A40),
    (f"https://kim:{S}@example.com/a", S), (f"mysql://kim:{S}@db/shop", S), (f"postgres://kim:{S}@db:5432/x", S),
    (f"redis://:{S}@cache:6379/0", S), (f"amqps://kim:{S}@mq//", S), (f"mongodb+srv://kim:{S}@m.test/x", S),
    (f"Server=db;User Id=kim;Password={S};", S), (f"AccountName=a;AccountKey={A40}==;", A40),
    (f"SharedAccessSignature={A40}", A40), (f"host=db password={S} dbname=x", S),
    ("key AKIA" + "QWERTYUIOPASDFGH is", "QWERTYUIOPASDFGH"), (f"aws_secret_access_key={A40}", A40),
    (f"ghp_{A40}", A40), (f"github_pat_{A40}", A40), (f"glpat-{A40[:20]}", A40[:20]), (f"xoxb-12-{A40}", A40),
    (f"sk_live_{A40}", A40), (f"whsec_{A40}", A40), (f"AIza{A40[:35]}", A40[:35]), (f"ya29.{A40}", A40),
    (f"AC{HEX} failed", HEX), (f"SG.{A40[:22]}.{A40}", A40), (f"npm_{A40}", A40), (f"pypi-{A40}", A40),
    (f"dckr_pat_{A40}", A40), (f"123456789:AA{A40[:33]}", A40[:33]), (f"sk-proj-{A40}", A40), (f"hf_{A40}", A40),
    (f"hvs.{A40}", A40), (f"https://hooks.slack.com/services/T0/B0/{A40}", A40),
    (f"eyJhbGciOiJI.eyJzdWIiOiIx.{A40}", A40),
    (f"-----BEGIN RSA PRIVATE KEY-----\n{A40}\n{A40}\n-----END RSA PRIVATE KEY-----", A40),
    (f"-----BEGIN PRIVATE KEY-----\n{A40}\n{A40}", A40), (f"private_key={HEX}{HEX}", HEX),
    ("paid with 4111 1111 1111 1111", "1111 1111"), ("card 5555555555554444.", "5555555555554444"),
    ("resident 900101-4870934", "4870934"), ("ssn 123-45-6789", "45-6789"), (f"비밀번호: {S}", S),
    *MISSED,
]  # fmt: skip
